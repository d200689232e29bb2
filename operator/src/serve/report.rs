//! `POST /v1/report`: what an agent says of itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use crds::wire::{Report, ReportAnswer};
use tokio::time::timeout;

use super::App;
use super::authorize::Verb;
use super::refusal::Refusal;
use super::watch::{Caller, check_wire};
use crate::http::Peer;

/// The largest report, in bytes.
const LARGEST: usize = 4 << 20;

/// How long a body may take.
pub(super) const BODY: Duration = Duration::from_secs(15);

pub(super) async fn report(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ReportAnswer>, Refusal> {
    let result = accept(&app, peer.addr, &headers, body).await;
    app.count("report", result.as_ref().err());
    result.map(Json)
}

async fn accept(app: &Arc<App>, peer: SocketAddr, headers: &HeaderMap, body: Body) -> Result<ReportAnswer, Refusal> {
    check_wire(headers)?;
    let caller = Caller::known(app, peer, headers, Verb::Report).await?;
    // a follower that was told by another follower would tell a third
    if headers.contains_key("outrider-forwarded") && !app.leading.borrow().is_leading() {
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "this replica doesn't lead"));
    }
    let body = read(body, LARGEST).await?;
    let report = Report::decode(&body).map_err(|error| bad_request(&error))?;
    let node = caller.may(app, Verb::Report, Some(&report.head().node))?;
    let uid = app.hub.live().resolved().nodes.get(&node).map(|n| n.body.body().uid.clone());
    match uid {
        None => Err(Refusal::new(StatusCode::NOT_FOUND, format!("there is no ExternalNode {node}"))),
        Some(uid) if uid != report.head().uid => Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("ExternalNode {node} has uid {uid}, not {}; the stream says which", report.head().uid),
        )),
        Some(_) => Ok(app.hub.report(report)),
    }
}

/// A body of at most `most` bytes, in time.
pub(super) async fn read(body: Body, most: usize) -> Result<axum::body::Bytes, Refusal> {
    match timeout(BODY, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {most} bytes, or broke off"),
        )),
        Err(_) => {
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, format!("the body took longer than {} s", BODY.as_secs())))
        }
    }
}

pub(super) fn bad_request(error: &(dyn std::error::Error + 'static)) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, crds::chain::Chain(error).to_string())
}
