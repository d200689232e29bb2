//! What the API server's audit log says: who asked for what, and what the answer was.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// Metadata of each request, once it is answered; of a watch also when it begins, since it may not end during a test.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

/// A place in the audit log: what comes after it was asked later.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark(u64);

/// One request to the API server.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// The same for all events of one request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// `ResponseComplete`, or `ResponseStarted` for a watch that goes on.
    pub stage: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// The path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Who asked.
    pub user: User,
    /// The program that asked, as it calls itself.
    #[serde(default)]
    pub user_agent: String,
    /// What was asked for; `None` for paths such as `/readyz`.
    pub object_ref: Option<ObjectRef>,
    /// What the answer was.
    #[serde(default)]
    pub response_status: ResponseStatus,
}

/// Who asked.
#[derive(Clone, Debug, Deserialize)]
pub struct User {
    /// The name, for instance `system:serviceaccount:default:agent`.
    #[serde(default)]
    pub username: String,
    /// The groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// What was asked for. Texts that do not apply are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// The API group.
    pub api_group: String,
    /// The plural of the kind.
    pub resource: String,
    /// `status`, `token`, …
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// The answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResponseStatus {
    /// The HTTP status.
    pub code: u16,
    /// The message of a failure.
    pub message: String,
}

/// Events of the audit log, oldest first, to be narrowed down.
#[derive(Clone, Debug)]
pub struct Audit(Vec<AuditEvent>);

impl Audit {
    pub(crate) fn mark(path: &Path) -> anyhow::Result<Mark> {
        let metadata = path.metadata().with_context(|| format!("failed to look at {}", path.display()))?;
        Ok(Mark(metadata.len()))
    }

    pub(crate) fn read(path: &Path, Mark(start): Mark) -> anyhow::Result<Self> {
        let read = || -> io::Result<String> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(start))?;
            io::read_to_string(file)
        };
        let text = read().with_context(|| format!("failed to read {}", path.display()))?;
        Ok(Self(parse(&text)?))
    }

    /// Those of the user with this name.
    #[must_use]
    pub fn by(self, username: &str) -> Self {
        self.only(|event| event.user.username == username)
    }

    /// Those with this verb.
    #[must_use]
    pub fn verb(self, verb: &str) -> Self {
        self.only(|event| event.verb == verb)
    }

    /// Those about this resource: `configmaps`, or `serviceaccounts/token` for a subresource.
    #[must_use]
    pub fn on(self, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.only(|event| {
            event.object_ref.as_ref().is_some_and(|of| of.resource == resource && of.subresource == subresource)
        })
    }

    /// Those that changed something, or tried to.
    #[must_use]
    pub fn writes(self) -> Self {
        self.only(|event| !matches!(event.verb.as_str(), "get" | "list" | "watch"))
    }

    /// Those that were refused for lack of a role.
    #[must_use]
    pub fn refused(self) -> Self {
        self.only(|event| event.response_status.code == 403)
    }

    /// Those that `wanted` says yes to.
    #[must_use]
    pub fn only(mut self, wanted: impl Fn(&AuditEvent) -> bool) -> Self {
        self.0.retain(wanted);
        self
    }
}

impl Deref for Audit {
    type Target = [AuditEvent];

    fn deref(&self) -> &[AuditEvent] {
        &self.0
    }
}

impl IntoIterator for Audit {
    type Item = AuditEvent;
    type IntoIter = std::vec::IntoIter<AuditEvent>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<AuditEvent>> {
    // A line without its end is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let events = whole.lines().map(serde_json::from_str);
    events.collect::<Result<_, _>>().context("a line of the audit log is not an event")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = r#"{"auditID":"1","stage":"ResponseComplete","verb":"list","requestURI":"/api/v1/configmaps",
        "user":{"username":"nobody"},"objectRef":{"resource":"configmaps"},"responseStatus":{"code":403}}"#;

    fn log(lines: &[&str]) -> Audit {
        Audit(parse(&lines.iter().map(|line| line.replace('\n', "") + "\n").collect::<String>()).unwrap())
    }

    #[test]
    fn a_line_that_is_still_being_written_is_no_event_yet() {
        assert_eq!(parse("{\"auditID\":").unwrap().len(), 0);
    }

    #[test]
    fn filters_narrow_down() {
        assert_eq!(log(&[REFUSED]).by("nobody").verb("list").on("configmaps").refused().len(), 1);
        assert_eq!(log(&[REFUSED]).on("configmaps/status").len(), 0);
        assert_eq!(log(&[REFUSED]).writes().len(), 0);
    }
}
