//! Who a bearer token belongs to, asked of the API server by TokenReview and remembered for a short while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crds::wire::AUDIENCE;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::authorize::Identity;

/// How long a token that was accepted is believed in: as long as that of an open stream, and not after its end.
const BELIEVED: Duration = Duration::from_mins(1);

/// How long a "no" is believed.
const REFUSED: Duration = Duration::from_secs(10);

/// Answers remembered at once.
const REMEMBERED: usize = 20_000;

/// Reviews under way at once: a flood of tokens must not become a flood at the API server.
const AT_ONCE: usize = 32;

/// How long one review may take, its wait for a turn included.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest token that is looked at, in bytes.
const LONGEST: usize = 16 * 1024;

/// Somebody, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Who.
    pub identity: Identity,
    /// When the token runs out; none when it doesn't say.
    pub expires: Option<Timestamp>,
}

/// Why nobody is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server says that the token is no good.
    #[error("the token of {claimed} is not accepted for audience {AUDIENCE}: {reason}")]
    Rejected {
        /// Whose the token says that it is, which proves nothing.
        claimed: String,
        /// Why not.
        reason: String,
    },
    /// The API server could not be asked.
    #[error("the token can't be reviewed now")]
    Unavailable(#[source] Box<kube::Error>),
    /// The API server didn't answer in time.
    #[error("the API server didn't review the token within {} s", PATIENCE.as_secs())]
    Late,
}

type Known = Result<Arc<Authenticated>, (String, String)>;

/// Asks, and remembers.
pub struct Authenticator {
    reviews: Api<TokenReview>,
    /// By the SHA-256 of the token: the token itself is never kept.
    known: Mutex<HashMap<[u8; 32], (Instant, Known)>>,
    /// Turns of those who come.
    comers: Semaphore,
    /// Turns of those who are here: a flood of strangers must not end their streams.
    residents: Semaphore,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Asks through `client`.
    pub fn new(client: Client) -> Self {
        Self {
            reviews: Api::all(client),
            known: Mutex::default(),
            comers: Semaphore::new(AT_ONCE),
            residents: Semaphore::new(AT_ONCE),
        }
    }

    /// Who `token` belongs to, by an answer that may be `BELIEVED` or `REFUSED` old.
    pub async fn authenticate(&self, token: &str) -> Result<Arc<Authenticated>, Error> {
        let key = key(token);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        match known {
            Some((at, known)) if is_fresh(at, &known) => {
                known.map_err(|(claimed, reason)| Error::Rejected { claimed, reason })
            }
            _ => self.ask_and_remember(token, &self.comers).await,
        }
    }

    /// Who `token` of an open stream belongs to, asked now.
    pub async fn review(&self, token: &str) -> Result<Arc<Authenticated>, Error> {
        self.ask_and_remember(token, &self.residents).await
    }

    async fn ask_and_remember(&self, token: &str, turns: &Semaphore) -> Result<Arc<Authenticated>, Error> {
        let known = timeout(PATIENCE, self.ask(token, turns)).await.unwrap_or(Err(Error::Late))?;
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED {
            all.retain(|_, (at, known)| is_fresh(*at, known));
        }
        if all.len() < REMEMBERED {
            all.insert(key(token), (Instant::now(), known.clone()));
        }
        drop(all);
        known.map_err(|(claimed, reason)| Error::Rejected { claimed, reason })
    }

    async fn ask(&self, token: &str, turns: &Semaphore) -> Result<Known, Error> {
        let claims = Claims::read(token);
        if token.len() > LONGEST {
            return Ok(Err((claims.subject, "it is too long".to_owned())));
        }
        let _permit = turns.acquire().await;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = self.reviews.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|source| Error::Unavailable(Box::new(source)))?.status.unwrap_or_default();
        let for_us = status.audiences.iter().flatten().any(|audience| audience == AUDIENCE);
        if status.authenticated != Some(true) || !for_us {
            let reason = status.error.unwrap_or_else(|| "it is not authenticated".to_owned());
            return Ok(Err((claims.subject, reason)));
        }
        let user = status.user.unwrap_or_default();
        let identity = Identity {
            user: user.username.unwrap_or_default(),
            groups: user.groups.unwrap_or_default().into_iter().collect(),
        };
        Ok(Ok(Arc::new(Authenticated { identity, expires: claims.expires })))
    }
}

fn is_fresh(at: Instant, known: &Known) -> bool {
    match known {
        Ok(who) => at.elapsed() < BELIEVED && who.expires.is_none_or(|end| Timestamp::now() < end),
        Err(_) => at.elapsed() < REFUSED,
    }
}

fn key(token: &str) -> [u8; 32] {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    key
}

/// What a JWT says of itself, unverified: whom the log may name, and when a verified one ends.
#[derive(Debug)]
struct Claims {
    subject: String,
    expires: Option<Timestamp>,
}

impl Claims {
    fn read(token: &str) -> Self {
        let payload = token.split('.').nth(1).and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
        let claims =
            payload.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok()).unwrap_or_default();
        let subject = claims["sub"].as_str().map(|sub| sub.chars().filter(|c| !c.is_control()).take(128).collect());
        Self {
            subject: subject.unwrap_or_else(|| "somebody who doesn't say who".to_owned()),
            expires: claims["exp"].as_i64().and_then(|seconds| Timestamp::from_second(seconds).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_who_it_is_and_when_it_ends_and_garbage_says_nothing() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"sub":"system:serviceaccount:vms:vm1","exp":1767225600}"#);
        let claims = Claims::read(&format!("e30.{payload}.c2ln"));
        assert_eq!(claims.subject, "system:serviceaccount:vms:vm1");
        assert_eq!(claims.expires, Timestamp::from_second(1_767_225_600).ok());
        for garbage in ["", ".", "a.b.c", "a.////.c", "\u{1f600}.\u{1f600}.x"] {
            assert_eq!(Claims::read(garbage).expires, None);
        }
    }

    #[test]
    fn what_a_token_claims_can_not_forge_a_line_of_the_log() {
        let payload = URL_SAFE_NO_PAD.encode("{\"sub\":\"a\\nERROR b\"}");
        assert_eq!(Claims::read(&format!("x.{payload}.y")).subject, "aERROR b");
    }
}
