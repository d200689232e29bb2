//! Streams, read as an agent reads them, over an API server that answers what the test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Mutex;

use axum::body::{Body, BodyDataStream, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crds::world::World;
use futures::{StreamExt, stream};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;

use super::*;
use crate::http::Peer;
use crate::limit::{self, Rate};
use crate::metrics::Metrics;
use crate::testing::{Objects, world};

const BEAT: Duration = Duration::from_secs(10);

/// A status and a body.
type Answer = (u16, Value);

/// What the API server answers; none is no answer.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<&'static str, Option<Answer>>>>);

const REVIEW: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const KIND: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/externalnodes.crd.antrea.io";
const NODE: &str = "/apis/crd.antrea.io/v1alpha1/namespaces/vms/externalnodes/vm1";

impl Answers {
    fn set(&self, path: &'static str, answer: impl Into<Option<Answer>>) {
        self.0.lock().unwrap().insert(path, answer.into());
    }

    fn client(&self) -> Client {
        let answers = self.clone();
        Client::new(
            tower::service_fn(move |request: Request<kube::client::Body>| {
                let answer = answers.0.lock().unwrap().get(request.uri().path()).cloned();
                async move {
                    let Some((code, body)) = answer.unwrap_or(Some((404, status(404, "")))) else {
                        return std::future::pending().await;
                    };
                    let body = kube::client::Body::from(serde_json::to_vec(&body).unwrap());
                    Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
                }
            }),
            "default",
        )
    }
}

fn status(code: u16, name: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "No", "details": {"name": name}})
}

fn known() -> Answer {
    known_as("system:serviceaccount:vms:agent")
}

fn known_as(user: &str) -> Answer {
    let user = json!({"username": user, "groups": []});
    (201, json!({"spec": {}, "status": {"authenticated": true, "audiences": ["outrider"], "user": user}}))
}

fn kind(served: bool) -> Answer {
    let names = json!({"kind": "ExternalNode", "plural": "externalnodes"});
    let versions = json!([{"name": "v1alpha1", "served": served, "storage": true}]);
    let spec = json!({"group": "crd.antrea.io", "scope": "Namespaced", "names": names, "versions": versions});
    let conditions = json!([{"type": "Established", "status": "True"}]);
    (
        200,
        json!({"metadata": {"name": "externalnodes.crd.antrea.io"}, "spec": spec, "status": {"conditions": conditions}}),
    )
}

fn deleted() -> Answer {
    (404, status(404, "vm1"))
}

fn there() -> Answer {
    (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "vm1"}}))
}

/// An operator with one machine that is bound, and one policy for it.
struct Operator {
    hub: Arc<Hub>,
    answers: Answers,
    router: Router,
    _leading: channel::Sender<Leadership>,
}

fn vm1() -> Objects {
    world().node("vms/vm1").label("site", "a").interface("eth0", ["10.0.0.5", "fd00::5"])
}

fn policy(name: &str) -> Objects {
    let spec = json!({"priority": 5, "appliedTo": [{"externalEntitySelector": {}}], "ingress": [{"action": "Drop"}]});
    world().policy(&format!("vms/{name}"), spec)
}

impl Operator {
    fn start(binding: Objects) -> Self {
        Self::start_with(binding, limit::Settings::default())
    }

    fn start_with(binding: Objects, limits: limit::Settings) -> Self {
        let metrics = Metrics::new(&mut Registry::default());
        let hub = Arc::new(Hub::new(World::waiting_for(&[]), BEAT, metrics));
        hub.apply([vm1().put(), binding.put(), policy("first").put()].concat());
        let answers = Answers::default();
        answers.set(REVIEW, known());
        answers.set(KIND, kind(true));
        let (leader, leading) = channel::channel(Leadership::unknown());
        let mut app = App::new(Arc::clone(&hub), answers.client(), leading, BEAT, CancellationToken::new());
        app.limits = Limits::new(limits);
        Self { hub, answers, router: router(Arc::new(app)), _leading: leader }
    }

    async fn call(&self, request: axum::http::request::Builder, body: Body, lasts: i64) -> Response<Body> {
        self.call_as("agent", request, body, lasts).await
    }

    /// A call with the token of `who`, which the API server takes for the agent's whoever it is.
    async fn call_as(
        &self,
        who: &str,
        request: axum::http::request::Builder,
        body: Body,
        lasts: i64,
    ) -> Response<Body> {
        let expires = jiff::Timestamp::now().as_second() + lasts;
        let claims = URL_SAFE_NO_PAD.encode(json!({"sub": who, "exp": expires}).to_string());
        let mut request = request.header("authorization", format!("Bearer e30.{claims}.c2ln")).body(body).unwrap();
        let peer = Peer { addr: "192.0.2.1:1".parse().unwrap(), certificates: Arc::default() };
        request.extensions_mut().insert(ConnectInfo(peer));
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// How the report is answered.
    async fn report(&self, node: &str, uid: &str) -> (u16, Value) {
        let body = json!({"node": node, "uid": uid, "digest": "d"}).to_string();
        said(self.call(Request::post("/v1/report"), Body::from(body), 3600).await).await
    }

    /// A stream with the token of an hour.
    async fn stream(&self) -> Reader {
        self.stream_for(3600).await
    }

    async fn stream_for(&self, seconds: i64) -> Reader {
        let answer = self.call(Request::get("/v1/watch?node=vms/vm1"), Body::empty(), seconds).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut reader = Reader(answer.into_body().into_data_stream());
        reader.until("commit").await;
        reader
    }
}

async fn said(answer: Response<Body>) -> (u16, Value) {
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&to_bytes(answer.into_body(), 10_000).await.unwrap()).unwrap())
}

struct Reader(BodyDataStream);

impl Reader {
    /// The next frame but pings; none at the end.
    async fn next(&mut self) -> Option<Value> {
        let soon = Instant::now() + Duration::from_mins(5);
        loop {
            let frame = timeout_at(soon, self.0.next()).await.expect("a frame, or the end")?.unwrap();
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            if frame["frame"] != "ping" {
                return Some(frame);
            }
        }
    }

    async fn until(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream ended before a {kind}"));
            if frame["frame"] == kind {
                return frame;
            }
        }
    }

    /// What else comes.
    async fn rest(&mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(frame) = self.next().await {
            rest.push(frame);
        }
        rest
    }

    /// What else comes before the end, which is now and not at the next review.
    async fn ends(&mut self) -> Vec<Value> {
        let begun = Instant::now();
        let rest = self.rest().await;
        assert!(begun.elapsed() < Duration::from_secs(1), "it ended after {:?}", begun.elapsed());
        rest
    }

    /// Nothing but pings for some beats.
    async fn is_quiet(&mut self) -> bool {
        let end = Instant::now() + BEAT * 3;
        loop {
            match timeout_at(end, self.0.next()).await {
                Err(_) => return true,
                Ok(Some(Ok(frame))) if frame.starts_with(b"{\"frame\":\"ping\"") => {}
                Ok(_) => return false,
            }
        }
    }
}

fn bound() -> Objects {
    world().bound("vms")
}

#[tokio::test(start_paused = true)]
async fn nothing_of_after_the_binding_went_is_told() {
    for _ in 0..20 {
        let operator = Operator::start(bound());
        let mut stream = operator.stream().await;
        operator.hub.apply(bound().deleted());
        operator.hub.apply(policy("later").put());
        assert_eq!(stream.ends().await, [json!(null); 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_read_yet_when_the_binding_went_is_not_told() {
    let operator = Operator::start(bound());
    let answer = operator.call(Request::get("/v1/watch?node=vms/vm1"), Body::empty(), 3600).await;
    let mut stream = Reader(answer.into_body().into_data_stream());
    stream.until("hello").await;
    operator.hub.apply(bound().deleted());
    assert_eq!(stream.ends().await, [json!(null); 0]);
}

#[tokio::test(start_paused = true)]
async fn a_label_by_which_the_binding_chose_the_node_ends_the_stream() {
    let subject = json!([{"kind": "ServiceAccount", "name": "agent", "namespace": "vms"}]);
    let spec = json!({"subjects": subject, "nodeSelector": {"matchLabels": {"site": "a"}}});
    let operator = Operator::start(world().binding("vms/b", spec));
    // without an address no policy selects it, so nothing that it is told depends on its labels
    operator.hub.apply(world().node("vms/vm1").label("site", "a").put());
    let mut stream = operator.stream().await;
    operator.hub.apply(world().node("vms/vm1").label("site", "b").put());
    assert_eq!(stream.ends().await, [json!(null); 0]);
}

#[tokio::test(start_paused = true)]
async fn a_review_without_an_answer_holds_up_nothing() {
    let operator = Operator::start(bound());
    let mut stream = operator.stream_for(2).await;
    operator.answers.set(REVIEW, None);
    assert!(stream.is_quiet().await, "the token ran out, and nobody says whether that is so");
    operator.hub.apply(policy("later").put());
    assert_eq!(stream.until("put").await["body"]["name"], "later");
    stream.until("commit").await;
    operator.hub.apply(bound().deleted());
    assert_eq!(stream.ends().await, [json!(null); 0]);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_refused_ends_the_stream() {
    let operator = Operator::start(bound());
    let mut stream = operator.stream_for(2).await;
    let refused = json!({"spec": {}, "status": {"authenticated": false, "error": "expired"}});
    operator.answers.set(REVIEW, (201, refused));
    assert_eq!(stream.rest().await, [json!(null); 0]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_told_so_before_its_binding_is_judged() {
    let operator = Operator::start(bound());
    let mut stream = operator.stream().await;
    operator.answers.set(NODE, deleted());
    operator.hub.apply([vm1().deleted(), bound().deleted()].concat());
    let rest = stream.ends().await;
    assert_eq!((rest.len(), &rest[0]["frame"], &rest[0]["uid"]), (1, &json!("gone"), &json!("uid of vms/vm1")));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_only_our_watch_does_not_see_is_not_gone() {
    let refused = (403, status(403, "vm1"));
    let page = (404, json!({"kind": "Status", "code": 404, "message": "page not found", "reason": "NotFound"}));
    let cases = [
        (kind(true), there().into(), "it is there"),
        (kind(true), refused.into(), "nobody may ask"),
        (kind(true), None, "no answer"),
        (kind(true), page.clone().into(), "the path is unknown"),
        (kind(false), page.into(), "the version isn't served"),
        ((404, status(404, "externalnodes.crd.antrea.io")), deleted().into(), "the kind is gone"),
    ];
    for (definition, node, why) in cases {
        let operator = Operator::start(bound());
        let mut stream = operator.stream().await;
        operator.answers.set(KIND, definition);
        operator.answers.set(NODE, node);
        operator.hub.apply(vm1().deleted());
        assert!(stream.is_quiet().await, "{why}");
        // and when it is seen again, the stream goes on
        operator.hub.apply([vm1().put(), policy("later").put()].concat());
        assert_eq!(stream.until("put").await["body"]["name"], "later", "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_stands_again_is_asked_for_again() {
    let operator = Operator::start(bound());
    let mut stream = operator.stream().await;
    operator.answers.set(KIND, kind(false));
    operator.answers.set(NODE, deleted());
    operator.hub.apply(vm1().deleted());
    assert!(stream.is_quiet().await);
    operator.answers.set(KIND, kind(true));
    assert_eq!(stream.until("gone").await["uid"], "uid of vms/vm1");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_is_judged_anew() {
    let operator = Operator::start(bound());
    let mut stream = operator.stream().await;
    operator.answers.set(KIND, None);
    operator.hub.apply(vm1().deleted());
    assert!(stream.is_quiet().await);
    operator.hub.apply(bound().deleted());
    assert!(stream.is_quiet().await, "a departure comes first, and is not known yet");
    operator.hub.apply([vm1().uid("second").put(), policy("later").put()].concat());
    assert_eq!(stream.ends().await, [json!(null); 0]);
}

#[tokio::test(start_paused = true)]
async fn who_has_more_to_delete_than_to_keep_is_told_everything() {
    let operator = Operator::start(bound());
    for (strays, full) in [(900, false), (1100, true)] {
        let have: BTreeMap<String, &str> =
            (0..strays).map(|n| (format!("policy/stray-{n}"), "00000000000000000000000000000000")).collect();
        let body = Body::from(json!({"uid": null, "have": have}).to_string());
        let answer = operator.call(Request::post("/v1/watch?node=vms/vm1"), body, 3600).await;
        let mut stream = Reader(answer.into_body().into_data_stream());
        assert_eq!(stream.until("hello").await["full"], full, "{strays}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_makes_no_sense_is_refused_like_any_other() {
    let operator = Operator::start(bound());
    for query in ["node=vms/vm1&node=vms/vm2", "uid=a&uid=b", "node=vm1", "node=a/b/c", "node=%ff"] {
        let answer = operator.call(Request::get(format!("/v1/watch?{query}")), Body::empty(), 3600).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{query}");
        let body: Value = serde_json::from_slice(&to_bytes(answer.into_body(), 10_000).await.unwrap()).unwrap();
        assert_eq!((&body["code"], &body["reason"]), (&json!(400), &json!("BadRequest")), "{query}");
    }
    let refused = crate::metrics::OfCall { call: "watch".to_owned(), status: 400 };
    assert_eq!(operator.hub.metrics.calls.get_or_create(&refused).get(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_report_is_taken_for_the_node_that_the_identity_may_act_for_and_no_other() {
    let operator = Operator::start(bound().node("other/vm3"));
    assert_eq!(operator.report("vms/vm1", "uid of vms/vm1").await, (200, json!({"want": "full"})));
    let (code, refusal) = operator.report("other/vm3", "uid of other/vm3").await;
    assert_eq!(code, 403, "{refusal}");
    assert!(refusal["message"].as_str().unwrap().contains("no ExternalNodeBinding lets"), "{refusal}");
    let (code, refusal) = operator.report("vms/vm1", "of before").await;
    assert_eq!(code, 409, "{refusal}");
    let (code, refusal) = operator.report("vms/vm9", "a").await;
    assert_eq!(code, 404, "{refusal}");
    operator.hub.apply(bound().deleted());
    let (code, refusal) = operator.report("vms/vm1", "uid of vms/vm1").await;
    assert_eq!(code, 403, "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_report_is_refused() {
    let operator = Operator::start(bound());
    let send = async |request: axum::http::request::Builder, body: Body| {
        said(operator.call(request, body, 3600).await).await.0
    };
    let report = || Request::post("/v1/report");
    assert_eq!(send(report(), Body::from("{")).await, 400);
    assert_eq!(send(report(), Body::from("[]")).await, 400);
    assert_eq!(send(report(), Body::from(vec![b' '; (4 << 20) + 1])).await, 413);
    let endless = stream::once(async { Ok::<_, Infallible>("{") }).chain(stream::pending());
    assert_eq!(send(report(), Body::from_stream(endless)).await, 408, "a body that never ends");
    assert_eq!(send(report().header("outrider-wire", "2"), Body::from("{}")).await, 505);
    let forwarded = report().header("outrider-forwarded", "1");
    assert_eq!(send(forwarded, Body::from("{}")).await, 421, "this replica doesn't lead");
    let watch = Request::post("/v1/watch?node=vms/vm1");
    assert_eq!(send(watch, Body::from(vec![b' '; (4 << 20) + 1])).await, 413);
}

#[tokio::test]
async fn one_identity_may_ask_so_often_and_others_all_the_same() {
    let operator = Operator::start(bound());
    let other = known_as("system:serviceaccount:vms:other");
    let mut codes = Vec::new();
    for _ in 0..11 {
        let answer = operator.call(Request::get("/v1/watch?node=vms/none"), Body::empty(), 3600).await;
        codes.push(answer.status().as_u16());
        if answer.status() == 429 {
            assert!(answer.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
        }
    }
    assert_eq!((&codes[..10], codes[10]), (&[404; 10][..], 429));
    let mut reports = Vec::new();
    for _ in 0..21 {
        reports.push(operator.report("vms/vm1", "uid of vms/vm1").await.0);
    }
    assert_eq!((&reports[..20], reports[20]), (&[200; 20][..], 429), "reports have a bucket of their own");
    operator.answers.set(REVIEW, other);
    let answer = operator.call_as("other", Request::get("/v1/watch?node=vms/vm1"), Body::empty(), 3600).await;
    assert_eq!(answer.status(), 403, "another identity is judged, not sent away");
}

#[tokio::test(start_paused = true)]
async fn one_identity_may_have_sixteen_streams() {
    let often = Rate { burst: NonZeroU32::MAX, per_second: NonZeroU32::MAX };
    let operator = Operator::start_with(bound(), limit::Settings { watch: often, ..limit::Settings::default() });
    let mut streams = Vec::new();
    while streams.len() < 16 {
        streams.push(operator.stream().await);
    }
    let more = || Request::get("/v1/watch?node=vms/vm1");
    let (code, refusal) = said(operator.call(more(), Body::empty(), 3600).await).await;
    assert_eq!(code, 429, "{refusal}");
    assert!(refusal["message"].as_str().unwrap().contains("16 streams"), "{refusal}");
    streams.pop();
    assert_eq!(operator.call(more(), Body::empty(), 3600).await.status(), 200, "there is a place again");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_reviewed_once_a_minute_and_not_at_each_call() {
    let operator = Operator::start(bound());
    let report = async || operator.report("vms/vm1", "uid of vms/vm1").await.0;
    assert_eq!(report().await, 200);
    operator.answers.set(REVIEW, None);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(report().await, 200, "known");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(report().await, 503, "to be asked for again, and nobody answers");
}
