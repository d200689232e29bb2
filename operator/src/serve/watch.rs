//! `GET` and `POST /v1/watch`: everything, then changes; or only what differs from what the agent has.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use crds::hash::Hash;
use crds::names::{Key, NodeName, Uid};
use crds::wire::{Frame, Hello, NDJSON, ObjectId, Resume, Update, View, WIRE, WIRE_HEADER};
use crds::world::World;
use futures::future::BoxFuture;
use futures::stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::authenticate::{Authenticated, Error};
use super::authorize::{Decision, Identity, Verb, authorize, is_named};
use super::refusal::Refusal;
use super::report::{bad_request, read};
use super::{App, standing};
use crate::http::Peer;
use crate::hub::Told;
use crate::limit::{self, OpenStream};
use crds::chain::Chain;

/// How often the token of an open stream is reviewed again.
const REVIEW: Duration = Duration::from_mins(1);

/// How soon what could not be asked is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// The largest list of what an agent has, in bytes: some 40,000 objects.
const LARGEST: usize = 4 << 20;

/// How many objects more than it should have an agent may have before it is told everything instead.
const STRAY: usize = 1000;

/// How often it is said at most that a missing node can't be judged.
const SAY: Duration = Duration::from_mins(1);

/// An answer under way, if one is.
type Pending<T> = Option<BoxFuture<'static, T>>;

async fn answer<T>(pending: &mut Pending<T>) -> T {
    match pending {
        Some(answer) => answer.await,
        None => std::future::pending().await,
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    node: Option<String>,
    uid: Option<String>,
}

pub(super) async fn begin(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let result = open(&app, peer.addr, asked, &headers, None).await;
    app.count("watch", result.as_ref().err());
    result
}

pub(super) async fn resume(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let result = open(&app, peer.addr, asked, &headers, Some(body)).await;
    app.count("watch", result.as_ref().err());
    result
}

/// Somebody known, with the token that the stream will be judged by again.
pub(super) struct Caller {
    peer: SocketAddr,
    token: String,
    who: Arc<Authenticated>,
}

impl Caller {
    /// Who calls, if the API server knows and the limits allow.
    pub(super) async fn known(app: &App, peer: SocketAddr, headers: &HeaderMap, verb: Verb) -> Result<Self, Refusal> {
        let token = bearer(headers).ok_or_else(|| {
            if app.refusals.say() {
                tracing::warn!(%peer, call = verb.as_str(), "refused: no bearer token");
            }
            Refusal::new(
                StatusCode::UNAUTHORIZED,
                "a bearer token is needed: Authorization: Bearer <token of audience outrider>",
            )
        })?;
        let who = app.authenticator.authenticate(&token).await.map_err(|error| match error {
            Error::Rejected { claimed, reason } => {
                if app.refusals.say() {
                    tracing::warn!(%peer, call = verb.as_str(), identity = claimed, reason, "refused: the token is not accepted");
                }
                Refusal::new(StatusCode::UNAUTHORIZED, format!("the token is not accepted for audience outrider: {reason}"))
            }
            Error::Unavailable(_) | Error::Late => {
                if app.refusals.say() {
                    tracing::warn!(%peer, call = verb.as_str(), error = %Chain(&error), "refused for now");
                }
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the token can't be reviewed now").again_in(AGAIN.as_secs())
            }
        })?;
        let kind = match verb {
            Verb::Watch => limit::Verb::Watch,
            Verb::Report => limit::Verb::Report,
        };
        app.limits.check(&who.identity.user, kind).map_err(|wait| {
            tracing::debug!(%peer, identity = %who.identity, call = verb.as_str(), "refused: too often");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, wait.to_string()).again_in(wait.seconds())
        })?;
        Ok(Self { peer, token, who })
    }

    /// The node that the caller may act for.
    pub(super) fn may(&self, app: &App, verb: Verb, target: Option<&NodeName>) -> Result<NodeName, Refusal> {
        let live = app.hub.live();
        if !live.world().ready() {
            return Err(not_ready());
        }
        let decision = authorize(live.world(), &self.who.identity, verb, target);
        drop(live);
        match decision {
            Decision::Allow(node) => Ok(node),
            Decision::Deny(reason) => {
                let (peer, identity) = (self.peer, &self.who.identity);
                let node = target.map(tracing::field::display);
                if app.refusals.say() {
                    tracing::warn!(%peer, %identity, node, call = verb.as_str(), reason, "refused: not allowed");
                }
                Err(Refusal::new(StatusCode::FORBIDDEN, reason))
            }
        }
    }
}

fn not_ready() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "not every kind was listed yet").again_in(1)
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// A client without the header is taken for a person with curl.
pub(super) fn check_wire(headers: &HeaderMap) -> Result<(), Refusal> {
    let asked =
        headers.get(WIRE_HEADER).map(|value| value.to_str().ok().and_then(|text| text.trim().parse::<u32>().ok()));
    match asked {
        None | Some(Some(WIRE)) => Ok(()),
        Some(_) => Err(Refusal::new(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            format!("this server speaks wire version {WIRE} only"),
        )),
    }
}

async fn open(
    app: &Arc<App>,
    peer: SocketAddr,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: &HeaderMap,
    body: Option<Body>,
) -> Result<Response, Refusal> {
    check_wire(headers)?;
    let caller = Caller::known(app, peer, headers, Verb::Watch).await?;
    let Query(asked) = asked.map_err(|error| bad_request(&error))?;
    let target =
        asked.node.as_deref().map(|text| text.parse::<NodeName>().map_err(|error| bad_request(&error))).transpose()?;
    let node = caller.may(app, Verb::Watch, target.as_ref())?;
    let resume = match body {
        Some(body) => {
            Some(serde_json::from_slice::<Resume>(&read(body, LARGEST).await?).map_err(|error| bad_request(&error))?)
        }
        None => None,
    };
    let place = app.limits.open_stream(&caller.who.identity.user);
    let place = place
        .map_err(|error| Refusal::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).again_in(AGAIN.as_secs()))?;
    let uid = resume.as_ref().and_then(|r| r.uid.clone()).or_else(|| asked.uid.as_deref().map(Uid::from));
    let have = resume.map(|r| r.have);
    let told = app.hub.subscribe(&node);
    let there = told.borrow().view.node.is_some();
    if !there && !departed(app, &node, uid.as_ref(), &caller.who.identity) {
        return Err(Refusal::new(StatusCode::NOT_FOUND, format!("there is no ExternalNode {node}")));
    }
    tracing::info!(%peer, identity = %caller.who.identity, %node, resumed = have.is_some(), "a stream begins");
    app.hub.metrics.streams.inc();
    let session = Session::new(Arc::clone(app), caller, node, uid, told, have, place);
    let lines = stream::unfold(session, |mut session| async move {
        let line = session.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), session))
    });
    Ok(([(CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response())
}

/// Whether the machine that asks was an ExternalNode of this name, and that is no more.
fn departed(app: &App, node: &NodeName, uid: Option<&Uid>, identity: &Identity) -> bool {
    let live = app.hub.live();
    let world = live.world();
    let known = |uid: &Uid| {
        let mut all = world.external_nodes.iter();
        all.any(|(key, n)| n.meta().uid.as_deref() == Some(uid.as_str()) && !is_going(world, key))
    };
    // an object that is there but can't be read, or can't be told yet, is not gone
    let there = world.external_nodes.contains_key(node.key()) && !is_going(world, node.key());
    uid.is_some_and(|uid| !known(uid)) && !there && is_named(world, identity, node)
}

/// Whether the ExternalNode that stands at `key` is about to be deleted, perhaps with its namespace.
fn is_going(world: &World, key: &Key) -> bool {
    let going = |meta: &ObjectMeta| meta.deletion_timestamp.is_some();
    let namespace = world.namespaces.get(&Key::cluster(key.namespace.clone()));
    world.external_nodes.get(key).is_some_and(|n| going(n.meta())) || namespace.is_some_and(|n| going(n.meta()))
}

/// One stream.
struct Session {
    app: Arc<App>,
    caller: Caller,
    node: NodeName,
    /// The ExternalNode that the agent was last told that it is, or says so.
    uid: Option<Uid>,
    told: watch::Receiver<Arc<Told>>,
    bindings: watch::Receiver<u64>,
    /// What the agent has, once the first commit is on its way.
    sent: View,
    have: Option<BTreeMap<ObjectId, Hash>>,
    lines: VecDeque<Bytes>,
    begun: bool,
    ended: bool,
    /// Since when the ExternalNode is seen to be missing.
    missing: Option<Instant>,
    ask_again: Instant,
    asking: Pending<Result<Absence, standing::Error>>,
    /// When it was last said that nobody knows why it is missing.
    said: Option<Instant>,
    ping: Instant,
    review: Instant,
    reviewing: Pending<Result<Arc<Authenticated>, Error>>,
    /// What the identity was last judged to be allowed to see.
    judged: Arc<Told>,
    _place: OpenStream,
}

/// Why an ExternalNode isn't there.
enum Absence {
    /// It was deleted, or is about to be.
    Deleted,
    /// Its kind is going, gone, or not served.
    Kind,
    /// It is there: the watch will say so.
    None,
}

impl Session {
    fn new(
        app: Arc<App>,
        caller: Caller,
        node: NodeName,
        uid: Option<Uid>,
        told: watch::Receiver<Arc<Told>>,
        have: Option<BTreeMap<ObjectId, Hash>>,
        place: OpenStream,
    ) -> Self {
        let now = Instant::now();
        let judged = Arc::clone(&told.borrow());
        let mut session = Self {
            bindings: app.hub.bindings(),
            sent: View::default(),
            lines: VecDeque::new(),
            begun: false,
            ended: false,
            missing: None,
            ask_again: now,
            asking: None,
            said: None,
            ping: now + app.beat / 2,
            review: now,
            reviewing: None,
            judged,
            app,
            caller,
            node,
            uid,
            told,
            have,
            _place: place,
        };
        session.review = session.next_review();
        session
    }

    /// The next line; none when the stream is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.judge_news();
            if let Some(line) = self.lines.pop_front() {
                self.app.hub.metrics.stream_bytes.inc_by(line.len() as u64);
                self.ping = Instant::now() + self.app.beat / 2;
                return Some(line);
            }
            if self.ended {
                return None;
            }
            if !self.begun {
                self.begun = true;
                self.hello();
                self.update();
                continue;
            }
            self.wait().await;
        }
    }

    fn hello(&mut self) {
        // what has more than enough to delete is told everything instead
        let view = &self.told.borrow().view;
        let stray = |have: &BTreeMap<ObjectId, Hash>| have.keys().filter(|id| !view.contains(id)).count();
        self.have = self.have.take().filter(|have| stray(have) <= STRAY.max(view.groups.len() + view.policies.len()));
        let seconds = u32::try_from(self.app.beat.as_secs().max(1)).unwrap_or(u32::MAX);
        let hello = Hello { wire: WIRE, full: self.have.is_none(), heartbeat_seconds: seconds };
        self.lines.push_back(Frame::Hello(hello).encode());
    }

    fn say(&mut self, frame: &Frame) {
        self.lines.push_back(frame.encode());
    }

    /// Ends the stream: what was not read yet is not for this identity any more.
    fn end(&mut self) {
        self.lines.clear();
        self.ended = true;
    }

    /// Waits for whatever comes first and does what it asks for. What may end the stream comes before what it would say,
    /// and no answer of the API server is waited for alone.
    async fn wait(&mut self) {
        let shutdown = self.app.shutdown.clone();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => self.ended = true,
            changed = self.bindings.changed() => match changed {
                Ok(()) => self.judge(),
                Err(_) => self.ended = true,
            },
            reviewed = answer(&mut self.reviewing) => {
                self.reviewing = None;
                self.reviewed(reviewed);
            }
            () = sleep_until(self.review), if self.reviewing.is_none() => self.begin_review(),
            absence = answer(&mut self.asking) => {
                self.asking = None;
                self.depart(absence);
            }
            () = sleep_until(self.ask_again), if self.missing.is_some() && self.asking.is_none() => self.ask(),
            changed = self.told.changed() => match changed {
                Ok(()) => self.update(),
                Err(_) => self.ended = true,
            },
            () = sleep_until(self.ping) => self.say(&Frame::Ping),
        }
    }

    /// Says what is new. A view without a node says nothing yet: it may be a departure.
    fn update(&mut self) {
        self.judge();
        let told = Arc::clone(&self.told.borrow_and_update());
        let Some(node) = &told.view.node else {
            if self.missing.is_none() {
                self.missing = Some(Instant::now());
                self.ask_again = Instant::now();
            }
            return;
        };
        if self.ended || !Arc::ptr_eq(&told, &self.judged) {
            // what came just now is judged first
            self.told.mark_changed();
            return;
        }
        self.missing = None;
        self.uid = Some(node.body().uid.clone());
        let first = self.sent.node.is_none();
        let update: Update = match self.have.take() {
            Some(have) => told.view.since(&have),
            None => self.sent.diff(&told.view),
        };
        self.sent = told.view.clone();
        if update.is_empty() && !first {
            return;
        }
        self.lines.extend(update.changes.iter().map(crds::wire::Change::line));
        self.say(&Frame::Commit(told.revision.clone()));
    }

    /// Asks whether the ExternalNode is missing because it was deleted.
    fn ask(&mut self) {
        let Some(seen) = self.missing else { return };
        self.ask_again = Instant::now() + AGAIN;
        let (app, key) = (Arc::clone(&self.app), self.node.key().clone());
        self.asking = Some(Box::pin(async move {
            if !app.standing.kind_after(seen).await? {
                return Ok(Absence::Kind);
            }
            // that it is being deleted was seen; that it isn't there may be the watch's trouble
            let going = app.hub.live().world().external_nodes.contains_key(&key);
            if going || app.standing.is_absent(&key).await? {
                return Ok(Absence::Deleted);
            }
            Ok(Absence::None)
        }));
    }

    /// Says that the ExternalNode is gone, if that is what its absence means and it is still absent.
    fn depart(&mut self, absence: Result<Absence, standing::Error>) {
        match absence {
            Ok(Absence::Deleted) => {}
            Ok(Absence::None) => {
                return tracing::debug!(node = %self.node, "the API server has the node: waiting for its watch");
            }
            Ok(Absence::Kind) => {
                if self.may_say() {
                    tracing::warn!(node = %self.node, "the kind ExternalNode is going, gone or not served: nobody is told that they are");
                }
                return;
            }
            Err(error) => {
                if self.may_say() {
                    tracing::warn!(node = %self.node, error = %Chain(&error), "can't tell yet whether the node is gone");
                }
                return;
            }
        }
        let Some(uid) = self.uid.clone() else {
            self.ended = true;
            return;
        };
        // not both in one condition: what is told must not be held while the objects are waited for
        let there = self.told.borrow().view.node.is_some();
        if there || !departed_or_going(&self.app, &self.node, &uid) {
            return;
        }
        tracing::info!(node = %self.node, %uid, identity = %self.caller.who.identity, "the node is told that it is gone");
        self.say(&Frame::Gone { uid, reason: format!("ExternalNode {} was deleted", self.node) });
        self.ended = true;
    }

    fn may_say(&mut self) -> bool {
        let may = self.said.is_none_or(|at| at.elapsed() >= SAY);
        if may {
            self.said = Some(Instant::now());
        }
        may
    }

    /// Judges again when anything changed by which the identity is judged, before another line goes out.
    fn judge_news(&mut self) {
        let bound = self.bindings.has_changed().unwrap_or_default();
        if bound || !Arc::ptr_eq(&self.judged, &self.told.borrow()) {
            self.bindings.mark_unchanged();
            self.judge();
        }
    }

    /// Ends the stream when the identity may no longer act for the node. A departure is said first.
    fn judge(&mut self) {
        let app = Arc::clone(&self.app);
        // views are published under this lock, so that what is told and who may see it are of one moment
        let live = app.hub.live();
        self.judged = Arc::clone(&self.told.borrow());
        if self.ended || self.judged.view.node.is_none() {
            return;
        }
        let decision = authorize(live.world(), &self.caller.who.identity, Verb::Watch, Some(&self.node));
        if let Decision::Deny(reason) = decision {
            tracing::warn!(node = %self.node, identity = %self.caller.who.identity, reason, "the stream ends: not allowed any more");
            self.end();
        }
    }

    fn next_review(&self) -> Instant {
        let left = self.caller.who.expires.map(|at| at.duration_since(jiff::Timestamp::now()));
        let left = left
            .map(|left| left.try_into().unwrap_or(Duration::ZERO))
            .map(|left: Duration| left + Duration::from_millis(100));
        Instant::now() + left.map_or(REVIEW, |left| left.min(REVIEW))
    }

    fn begin_review(&mut self) {
        let (app, token) = (Arc::clone(&self.app), self.caller.token.clone());
        self.reviewing = Some(Box::pin(async move { app.authenticator.review(&token).await }));
    }

    /// A clear "no" ends the stream; no answer keeps it.
    fn reviewed(&mut self, reviewed: Result<Arc<Authenticated>, Error>) {
        match reviewed {
            Ok(who) => {
                self.caller.who = who;
                self.review = self.next_review().max(Instant::now() + Duration::from_secs(1));
                // groups may be others than before
                self.judge();
            }
            Err(Error::Rejected { reason, .. }) => {
                tracing::warn!(node = %self.node, identity = %self.caller.who.identity, reason, "the stream ends: the token is no longer accepted");
                self.end();
            }
            Err(error) => {
                tracing::warn!(node = %self.node, error = %Chain(&error), "the token can't be reviewed now; the stream goes on");
                self.review = Instant::now() + AGAIN;
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.app.hub.metrics.streams.dec();
        tracing::debug!(node = %self.node, identity = %self.caller.who.identity, "a stream ended");
    }
}

/// Whether the ExternalNode with this uid is deleted, or, like its namespace perhaps, about to be.
fn departed_or_going(app: &App, node: &NodeName, uid: &Uid) -> bool {
    let live = app.hub.live();
    let world = live.world();
    let Some(stored) = world.external_nodes.get(node.key()) else { return true };
    is_going(world, node.key()) && stored.meta().uid.as_deref() == Some(uid.as_str())
}

impl App {
    /// Counts a call by its outcome. Refusals that are the caller's own trouble are no more than debug lines.
    pub(super) fn count(&self, call: &str, refusal: Option<&Refusal>) {
        if let Some(refusal) = refusal {
            tracing::debug!(call, status = refusal.status.as_u16(), reason = refusal.message, "a call was refused");
        }
        let status = refusal.map_or(200, |r| r.status.as_u16());
        let label = crate::metrics::OfCall { call: call.to_owned(), status };
        self.hub.metrics.calls.get_or_create(&label).inc();
    }
}
