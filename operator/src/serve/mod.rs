//! The agents' API: one port, three calls, no decisions of its own.
//!
//! ```text
//! request --token--> Identity --authorize (pure)--> node --> stream of frames | report
//! ```
//!
//! Every refusal is told to the client with its reason; who is not let in, and why, is told to the log, too.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use kube::Client;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

use crate::hub::Hub;
use crate::lease::Leadership;
use crate::limit::Limits;

pub mod authenticate;
pub mod authorize;
mod refusal;
mod report;
pub mod standing;
#[cfg(test)]
mod tests;
mod watch;

/// What the handlers share.
#[derive(Debug)]
pub struct App {
    /// The state.
    pub hub: Arc<Hub>,
    /// Who is who.
    pub authenticator: authenticate::Authenticator,
    /// Whether the kinds themselves stand, which a deletion must be judged by.
    pub standing: standing::Standing,
    /// Bounds per identity.
    pub limits: Limits,
    /// Which refusals are told to the log.
    pub refusals: refusal::Refusals,
    /// Whether this replica leads.
    pub leading: channel::Receiver<Leadership>,
    /// How often agents report.
    pub beat: Duration,
    /// Ends the streams.
    pub shutdown: CancellationToken,
}

impl App {
    /// All that handlers share, for a server that asks `client`.
    pub fn new(
        hub: Arc<Hub>,
        client: Client,
        leading: channel::Receiver<Leadership>,
        beat: Duration,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            hub,
            authenticator: authenticate::Authenticator::new(client.clone()),
            standing: standing::Standing::new(client),
            limits: Limits::new(crate::limit::Settings::default()),
            refusals: refusal::Refusals::default(),
            leading,
            beat,
            shutdown,
        }
    }
}

/// The three calls.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/watch", get(watch::begin).post(watch::resume))
        .route("/v1/report", post(report::report))
        .fallback(refusal::unknown_path)
        .with_state(app)
}
