//! How a call is refused: `{"code", "reason", "message"}`, as the API server's own refusals read.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use crds::wire::{WIRE, WIRE_HEADER};
use serde_json::json;

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
