//! One watch per kind, each ending in [`Event`]s: the only door through which objects come in.
//!
//! A list counts only when it is whole: objects of an unfinished one wait, and a failed page begins it again. A kind
//! that isn't installed is an empty list, asked for again from time to time. One that is installed and not served in our
//! version is trouble, and what was seen of it stays.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use kube::api::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::core::DynamicObject;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;

use super::{Event, Object, WorldKind};
use crate::chain::Chain;

/// Between two tries at a watch that fails: from 0.2 s, doubling up to 5 s, so that a kind which is installed later is
/// seen soon. Jittered by half, so that replicas don't ask in step.
#[derive(Debug, Default)]
struct Delays {
    tries: u32,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let whole = (Duration::from_millis(200) * 2u32.saturating_pow(self.tries)).min(Duration::from_secs(5));
        self.tries = (self.tries + 1).min(8);
        // a fresh hasher has random keys: enough for jitter
        let random = RandomState::new().build_hasher().finish() % 1000;
        Some(whole / 2 + whole / 2 * u32::try_from(random).unwrap_or_default() / 1000)
    }
}

impl Backoff for Delays {
    fn reset(&mut self) {
        self.tries = 0;
    }
}

/// [`Delays`] that begin anew only after half a minute without a failure. A watch that fails for good says between two
/// tries that it begins, and that must not count as a success.
struct Patient(ResetTimerBackoff<Delays>);

impl Iterator for Patient {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Patient {
    fn reset(&mut self) {}
}

fn backoff() -> Patient {
    Patient(ResetTimerBackoff::new(Delays::default(), Duration::from_secs(30)))
}

impl WorldKind {
    /// The resource of this kind for an untyped [`Api`].
    pub fn api_resource(self) -> ApiResource {
        let (group, version, plural, kind) = self.resource();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Whether metadata is all that is asked of the server: its Nodes alone would be megabytes a minute.
    fn is_bare(self) -> bool {
        matches!(self, Self::Namespace | Self::Node | Self::Definition | Self::ValidatingWebhook)
    }
}

/// Feeds `events` with everything that happens to `kind`, until the receiver is gone.
pub async fn watch(client: Client, kind: WorldKind, events: mpsc::Sender<Event>) {
    let (resource, config) = (kind.api_resource(), watcher::Config::default());
    let definitions =
        Api::<PartialObjectMeta<DynamicObject>>::all_with(client.clone(), &WorldKind::Definition.api_resource());
    let definition = format!("{}.{}", resource.plural, resource.group);
    let installed = move || {
        let (definitions, definition) = (definitions.clone(), definition.clone());
        async move { Ok(definitions.get_metadata_opt(&definition).await?.is_some()) }.boxed()
    };
    if kind.is_bare() {
        let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client, &resource);
        follow(kind, watcher(api, config).map_ok(bare).backoff(backoff()), installed, events).await;
    } else {
        let api = Api::<DynamicObject>::all_with(client, &resource);
        follow(kind, watcher(api, config).backoff(backoff()), installed, events).await;
    }
}

fn bare(event: watcher::Event<PartialObjectMeta<DynamicObject>>) -> watcher::Event<DynamicObject> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let object = |o: PartialObjectMeta<DynamicObject>| DynamicObject {
        types: None,
        metadata: o.metadata,
        data: serde_json::Value::Null,
    };
    match event {
        Init => Init,
        InitApply(o) => InitApply(object(o)),
        InitDone => InitDone,
        Apply(o) => Apply(object(o)),
        Delete(o) => Delete(object(o)),
    }
}

/// The loop of [`watch`] over any stream of watch events. `installed`: whether the kind has a definition.
async fn follow(
    kind: WorldKind,
    stream: impl Stream<Item = Result<watcher::Event<DynamicObject>, watcher::Error>>,
    installed: impl Fn() -> BoxFuture<'static, Result<bool, kube::Error>>,
    events: mpsc::Sender<Event>,
) {
    let mut stream = std::pin::pin!(stream);
    let mut list = Vec::new();
    let mut trouble: Option<String> = None;
    while let Some(item) = stream.next().await {
        if let Ok(watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_)) = &item
            && trouble.take().is_some()
        {
            tracing::info!(%kind, "the watch goes on");
        }
        let event = match item {
            Ok(watcher::Event::Init) => {
                list.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                list.push(Object::decode(kind, object));
                continue;
            }
            Ok(watcher::Event::InitDone) => Event::Listed(kind, std::mem::take(&mut list)),
            Ok(watcher::Event::Apply(object)) => Event::Put(Object::decode(kind, object)),
            Ok(watcher::Event::Delete(object)) => Event::Delete(Object::decode(kind, object)),
            Err(error) => {
                let why = match is_unknown(&error).then_some(installed().await) {
                    Some(Ok(false)) => None,
                    Some(Ok(true)) => Some("the kind is installed, but not served in this version".to_owned()),
                    Some(Err(error)) => Some(Chain(&error).to_string()),
                    None => Some(Chain(&error).to_string()),
                };
                let Some(error) = why else {
                    trouble = None;
                    tracing::debug!(%kind, "not installed: counts as an empty list");
                    if events.send(Event::Listed(kind, Vec::new())).await.is_err() {
                        return;
                    }
                    continue;
                };
                // each trouble once, not at each try
                if trouble.as_ref() == Some(&error) {
                    tracing::debug!(%kind, error, "the watch failed again");
                } else {
                    tracing::warn!(%kind, error, "the watch failed and is tried again");
                    trouble = Some(error);
                }
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Whether the server doesn't know the resource. A watch that expired (410) isn't that.
fn is_unknown(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use futures::stream;
    use kube::core::Status;

    fn node(name: &str) -> DynamicObject {
        DynamicObject::new(name, &WorldKind::Node.api_resource())
    }

    fn failed(code: u16) -> watcher::Error {
        let status = Status { code, ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    async fn events_of(
        items: Vec<Result<watcher::Event<DynamicObject>, watcher::Error>>,
        installed: bool,
    ) -> Vec<(bool, usize)> {
        let (sender, mut receiver) = mpsc::channel(16);
        follow(WorldKind::Node, stream::iter(items), move || async move { Ok(installed) }.boxed(), sender).await;
        let mut seen = Vec::new();
        while let Some(event) = receiver.recv().await {
            seen.push(match event {
                Event::Listed(_, objects) => (true, objects.len()),
                Event::Put(_) | Event::Delete(_) => (false, 1),
            });
        }
        seen
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_is_no_list() {
        use watcher::Event::{Apply, Init, InitApply, InitDone};
        let items = vec![
            Ok(Init),
            Ok(InitApply(node("a"))),
            Err(failed(500)),
            Ok(Init),
            Ok(InitApply(node("a"))),
            Ok(InitApply(node("b"))),
            Ok(InitDone),
            Ok(Apply(node("c"))),
        ];
        assert_eq!(events_of(items, true).await, [(true, 2), (false, 1)]);
    }

    /// Answers that come with the status `code`, through everything that stands between a client and us; how long
    /// after the begin each question came.
    async fn asked_within(code: u16, time: Duration) -> Vec<Duration> {
        let (begin, asked) = (tokio::time::Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let times = Arc::clone(&asked);
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            if !request.uri().path().contains("customresourcedefinitions") {
                times.lock().unwrap().push(begin.elapsed());
            }
            let status = Status::failure("no", "No").with_code(code);
            let body = kube::client::Body::from(serde_json::to_vec(&status).unwrap());
            let answer = hyper::Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
        });
        let (sender, mut receiver) = mpsc::channel(1024);
        let watching = watch(Client::new(service, "default"), WorldKind::ExternalNode, sender);
        let ended = tokio::time::timeout(
            time,
            Box::pin(async { tokio::join!(watching, async { while receiver.recv().await.is_some() {} }) }),
        );
        assert!(ended.await.is_err(), "a watch goes on for ever");
        asked.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_for_good_is_asked_for_more_and_more_seldom() {
        for code in [403, 404, 500] {
            let asked = Box::pin(asked_within(code, Duration::from_mins(2))).await;
            // doubling from 0.2 s to 5 s, each 0.5 to 1 of that
            assert!((24..=60).contains(&asked.len()), "{code}: asked {} times in two minutes", asked.len());
            let last: Vec<_> = asked.windows(2).map(|two| two[1].saturating_sub(two[0])).skip(6).collect();
            assert!(last.iter().all(|wait| *wait >= Duration::from_millis(2500)), "{code}: {last:?}");
        }
    }

    #[tokio::test]
    async fn only_a_kind_that_is_not_installed_counts_as_empty() {
        assert_eq!(events_of(vec![Err(failed(404))], false).await, [(true, 0)]);
        assert_eq!(events_of(vec![Err(failed(404))], true).await, [], "it is there, and another version is served");
        for code in [401, 403, 410, 429, 500, 503] {
            assert_eq!(events_of(vec![Err(failed(code))], false).await, [], "{code}");
        }
    }
}
