//! What a failed test leaves for whoever reads it: objects, events and the ends of logs.

use std::fmt::Write;

use crate::cluster::Cluster;

/// The API groups whose objects tell what went wrong.
const GROUPS: [&str; 2] = ["crd.antrea.io", "outrider.io"];

/// How much of each part is shown.
const LINES: usize = 400;
const EVENTS: usize = 40;
const LOG: usize = 30;

impl Cluster {
    /// The objects of our API groups, recent Events and the ends of all logs, for people.
    ///
    /// Not async: it's asked for while a panic unwinds.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for group in GROUPS {
            section(&mut text, &format!("objects of {group}"), &self.objects(group));
        }
        let events =
            self.say_with_kubectl(&["get", "events.events.k8s.io", "-A", "--sort-by=.metadata.creationTimestamp"]);
        section(&mut text, "events", &last(&events, EVENTS));
        for program in self.all_programs() {
            let ended = program.ended().map(|status| format!(", ended: {status}")).unwrap_or_default();
            section(&mut text, &format!("log of {}{ended}", program.name()), &program.last_lines(LOG));
        }
        let _ = write!(text, "everything else: {} (until the next run)", self.dir().display());
        text
    }

    fn objects(&self, group: &str) -> String {
        let kinds = self.say_with_kubectl(&["api-resources", "--api-group", group, "--verbs=list", "-o", "name"]);
        let kinds: Vec<_> = kinds.split_whitespace().collect();
        if kinds.is_empty() {
            return String::new();
        }
        first(&self.say_with_kubectl(&["get", &kinds.join(","), "-A", "-o", "yaml"]), LINES)
    }

    /// What kubectl says, be it an error: a report has no use for failures of its own.
    fn say_with_kubectl(&self, args: &[&str]) -> String {
        match self.kubectl_command(args).arg("--request-timeout=5s").output() {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        }
    }
}

fn section(text: &mut String, title: &str, body: &str) {
    let body = if body.trim().is_empty() { "(none)" } else { body.trim_end() };
    let _ = write!(text, "---- {title} ----\n{body}\n");
}

fn first(text: &str, count: usize) -> String {
    let mut lines: Vec<_> = text.lines().take(count).collect();
    if text.lines().nth(count).is_some() {
        lines.push("(and more)");
    }
    lines.join("\n")
}

fn last(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
