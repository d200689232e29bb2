//! Whether the kind ExternalNode itself stands.
//!
//! When its definition is being deleted, every ExternalNode is deleted with it, and that must not release a fleet. The
//! API server marks the definition before it deletes the first object, so asking after a deletion was seen tells.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The definition of ExternalNode.
const DEFINITION: &str = "externalnodes.crd.antrea.io";

/// Asks the API server, once for all who want to know of the same moment.
pub struct Standing {
    definitions: Api<PartialObjectMeta<CustomResourceDefinition>>,
    last: Mutex<Option<(Instant, bool)>>,
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standing").finish_non_exhaustive()
    }
}

impl Standing {
    /// Asks through `client`.
    pub fn new(client: Client) -> Self {
        Self { definitions: Api::all(client), last: Mutex::new(None) }
    }

    /// Whether the kind stood at some moment after `seen`.
    pub async fn after(&self, seen: Instant) -> Result<bool, kube::Error> {
        let mut last = self.last.lock().await;
        if let Some((asked, stands)) = *last
            && asked > seen
        {
            return Ok(stands);
        }
        let asked = Instant::now();
        let definition = self.definitions.get_metadata_opt(DEFINITION).await?;
        let stands = definition.is_some_and(|d| d.metadata.deletion_timestamp.is_none());
        *last = Some((asked, stands));
        Ok(stands)
    }
}
