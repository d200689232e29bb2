//! Whether an ExternalNode that is missing was really deleted.
//!
//! The word `gone` releases a machine, so what a watch no longer shows isn't enough: the definition of the kind may be
//! going, and all objects with it, or our version of it may no longer be served. Both are asked of the API server, which
//! marks a definition before it deletes the first object.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, PartialObjectMeta};
use kube::core::Status;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Duration, Instant, timeout};

use crds::names::Key;
use crds::world::WorldKind;

/// The definition of ExternalNode.
const DEFINITION: &str = "externalnodes.crd.antrea.io";

/// How long one answer may take, and how long a "no" is believed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions about single objects under way at once: a whole namespace may go.
const AT_ONCE: usize = 32;

/// Why nobody can tell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server refused the question.
    #[error("failed to ask whether the ExternalNode and its kind stand")]
    Refused(#[source] Box<kube::Error>),
    /// It didn't answer.
    #[error("the API server doesn't say whether the ExternalNode and its kind stand")]
    Late,
}

/// Asks the API server; about the kind once for all who want to know of the same moment.
pub struct Standing {
    client: Client,
    definitions: Api<CustomResourceDefinition>,
    last: Mutex<Option<(Instant, bool)>>,
    permits: Semaphore,
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standing").finish_non_exhaustive()
    }
}

impl Standing {
    /// Asks through `client`.
    pub fn new(client: Client) -> Self {
        Self { definitions: Api::all(client.clone()), client, last: Mutex::new(None), permits: Semaphore::new(AT_ONCE) }
    }

    /// Whether the kind stood, and was served, at some moment after `seen`.
    pub async fn kind_after(&self, seen: Instant) -> Result<bool, Error> {
        let ask = async {
            let mut last = self.last.lock().await;
            if let Some((asked, stands)) = *last
                && asked > seen
                && (stands || asked.elapsed() < PATIENCE)
            {
                return Ok(stands);
            }
            let asked = Instant::now();
            let definition = self.definitions.get_opt(DEFINITION).await.map_err(refused)?;
            let stands = definition.as_ref().is_some_and(is_served);
            *last = Some((asked, stands));
            Ok(stands)
        };
        timeout(PATIENCE, ask).await.unwrap_or(Err(Error::Late))
    }

    /// Whether the API server knows no ExternalNode at `key`.
    pub async fn is_absent(&self, key: &Key) -> Result<bool, Error> {
        let nodes: Api<PartialObjectMeta<DynamicObject>> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &WorldKind::ExternalNode.api_resource());
        let ask = async {
            let _permit = self.permits.acquire().await;
            nodes.get_metadata(&key.name).await
        };
        match timeout(PATIENCE, ask).await.map_err(|_| Error::Late)? {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if says_that_it_is_not_there(&status, key) => Ok(true),
            Err(error) => Err(refused(error)),
        }
    }
}

fn refused(error: kube::Error) -> Error {
    Error::Refused(Box::new(error))
}

/// Whether our version of the kind is there to stay.
fn is_served(definition: &CustomResourceDefinition) -> bool {
    let (_, version, ..) = WorldKind::ExternalNode.resource();
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let established = conditions.filter(|c| c.type_ == "Established").any(|c| c.status == "True");
    let served = definition.spec.versions.iter().any(|v| v.name == version && v.served);
    definition.metadata.deletion_timestamp.is_none() && established && served
}

/// A 404 about this object. One about the path names no object: the kind isn't served.
fn says_that_it_is_not_there(status: &Status, key: &Key) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| *details.name == *key.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(served: bool, established: &str, going: bool) -> CustomResourceDefinition {
        let metadata = if going { json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}) } else { json!({}) };
        let version = |name: &str, served: bool| json!({"name": name, "served": served, "storage": false});
        let names = json!({"kind": "ExternalNode", "plural": "externalnodes"});
        let versions = [version("v1alpha1", served), version("v1beta1", true)];
        let conditions = json!([{"type": "Established", "status": established}]);
        serde_json::from_value(json!({
            "metadata": metadata, "status": {"conditions": conditions},
            "spec": {"group": "crd.antrea.io", "scope": "Namespaced", "names": names, "versions": versions},
        }))
        .unwrap()
    }

    #[test]
    fn a_kind_stands_when_our_version_is_served_and_nobody_deletes_it() {
        assert!(is_served(&definition(true, "True", false)));
        assert!(!is_served(&definition(false, "True", false)));
        assert!(!is_served(&definition(true, "False", false)));
        assert!(!is_served(&definition(true, "True", true)));
    }

    #[test]
    fn only_an_answer_that_names_the_object_says_that_it_is_not_there() {
        let status = |value| serde_json::from_value::<Status>(value).unwrap();
        let key = Key::new("vms", "vm1");
        let of = |name: &str| status(json!({"code": 404, "reason": "NotFound", "details": {"name": name}}));
        assert!(says_that_it_is_not_there(&of("vm1"), &key));
        assert!(!says_that_it_is_not_there(&of("vm2"), &key));
        let page = status(json!({"code": 404, "reason": "NotFound", "message": "page not found"}));
        assert!(!says_that_it_is_not_there(&page, &key), "the kind is not served");
    }
}
