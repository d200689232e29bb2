//! How a call is refused: `{"code", "reason", "message"}`, as the API server's own refusals read.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use crds::wire::{WIRE, WIRE_HEADER};
use serde_json::json;
use tokio::time::Instant;

/// Why a call is refused.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// Seconds after which a try makes sense.
    pub(super) retry_after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    pub(super) fn again_in(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }
}

/// How many refusals are told to the log in a second: a flood of them must not be a flood there.
const LINES: u64 = 20;

/// Who was refused is told to the log sparingly.
#[derive(Debug)]
pub struct Refusals(Mutex<(Instant, u64)>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), 0)))
    }
}

impl Refusals {
    /// Whether the log should hear of this one.
    pub(super) fn say(&self) -> bool {
        let unsaid = self.count();
        if let Some(unsaid @ 1..) = unsaid {
            tracing::warn!(unsaid, "refusals were more than are told");
        }
        unsaid.is_some()
    }

    /// How many were not told, if this one should be.
    fn count(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = &mut *state;
        *count += 1;
        if since.elapsed() < Duration::from_secs(1) {
            return (*count <= LINES).then_some(0);
        }
        let unsaid = (*count - 1).saturating_sub(LINES);
        (*since, *count) = (Instant::now(), 1);
        Some(unsaid)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let reason = self.status.canonical_reason().unwrap_or_default().replace(' ', "");
        let body = json!({"code": self.status.as_u16(), "reason": reason, "message": self.message});
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::HTTP_VERSION_NOT_SUPPORTED {
            response.headers_mut().insert(HeaderName::from_static(WIRE_HEADER), HeaderValue::from(WIRE));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(super) async fn unknown_path(uri: Uri) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        format!("there is no {}; this is the agents' API: /v1/watch and /v1/report", uri.path()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_some_lines_and_a_number() {
        let refusals = Refusals::default();
        let said = (0..1000).filter(|_| refusals.count().is_some()).count();
        assert_eq!(said, 20);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(refusals.count(), Some(980));
        assert_eq!(refusals.count(), Some(0));
    }
}
