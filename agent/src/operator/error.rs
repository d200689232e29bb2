//! Why an operator gave nothing, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls::CertificateError;
use serde::Deserialize;

use super::address::Address;
use super::tls::CaError;
use crds::chain::{causes, one_line, root};

/// Why a call wasn't answered as hoped. None of it means that this machine was deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nobody can be believed without it.
    #[error("failed to use the CA file {}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: CaError,
    },
    /// Nobody believes us without it.
    #[error("failed to use the token file {}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: TokenError,
    },
    /// No connection could even be tried.
    #[error("failed to prepare a connection")]
    Client(#[source] reqwest::Error),
    /// No address gave what was asked for.
    #[error("{}", tried(attempts))]
    Unanswered {
        /// Each address that was tried, in that order.
        attempts: Vec<Attempt>,
    },
    /// A report was taken, and the answer to it makes no sense.
    #[error("the operator at {peer} answered a report with something else")]
    Garbage {
        /// Who.
        peer: SocketAddr,
        /// Why it makes no sense.
        source: serde_json::Error,
    },
}

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Not there or not readable.
    #[error("it can't be read")]
    Read(#[from] io::Error),
    /// Nothing in it.
    #[error("it is empty")]
    Empty,
    /// Something in it that is longer or stranger than any token.
    #[error("what is in it is no token")]
    NotAToken,
}

/// One address that was tried in vain.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// As configured.
    pub address: Address,
    /// What it resolved to.
    pub socket: Option<SocketAddr>,
    /// What came of it.
    pub failure: Failure,
}

/// What came of one address.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The name doesn't resolve.
    Resolve(io::Error),
    /// The name resolves to nothing.
    NoAddress,
    /// No connection, or it broke before the answer.
    Connect(reqwest::Error),
    /// No answer for this long.
    Late(Duration),
    /// An answer that isn't the one hoped for.
    Answer(Answer),
}

/// An answer that refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// One word for programs; empty when the answer had none.
    pub reason: String,
    /// For people.
    pub message: String,
    /// How long the operator wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// What an error means to whoever started the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The operator knows the identity and says no, or doesn't know it.
    NotAuthorised,
    /// No operator answered.
    Unreachable,
    /// Everything else.
    Other,
}

impl Answer {
    /// The answer `status` with the JSON or other text in `body`.
    pub(super) fn new(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            reason: String,
            message: String,
        }
        let Body { reason, message } = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            Body { reason: String::new(), message: text.trim().chars().take(200).collect() }
        });
        Self { status, reason: one_line(&reason), message: one_line(&message), retry_after }
    }

    /// Whether the answer is about the asker, so that another operator would give the same.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.status, 401 | 403 | 429)
    }

    /// Whether the request could not be used as it was: too large, or not understood.
    pub(super) fn is_about_the_request(&self) -> bool {
        matches!(self.status, 400 | 405 | 413 | 415 | 422)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, reason, message, retry_after: _ } = self;
        write!(f, "answered {status}")?;
        if !reason.is_empty() {
            write!(f, " {reason}")?;
        }
        if !message.is_empty() {
            write!(f, " ({message})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(error) => write!(f, "the name doesn't resolve: {}", root(error)),
            Self::NoAddress => f.write_str("the name resolves to no address"),
            Self::Connect(error) => f.write_str(&one_line(&root(error))),
            Self::Late(after) => write!(f, "no answer within {} s", after.as_secs_f32()),
            Self::Answer(answer) => answer.fmt(f),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, socket, failure } = self;
        write!(f, "{address}")?;
        match socket {
            Some(socket) if address.name().is_some() => write!(f, " ({socket}): {failure}"),
            _ => write!(f, ": {failure}"),
        }
    }
}

fn tried(attempts: &[Attempt]) -> String {
    let told: Vec<_> = attempts.iter().map(ToString::to_string).collect();
    format!("tried {}", told.join("; "))
}

impl CallError {
    /// What it means to whoever started the program.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unanswered { .. } => match self.answers().next() {
                None => Kind::Unreachable,
                Some(_) if self.answers().any(|answer| matches!(answer.status, 401 | 403)) => Kind::NotAuthorised,
                Some(_) => Kind::Other,
            },
            _ => Kind::Other,
        }
    }

    /// How long the operators want to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        self.answers().filter_map(|answer| answer.retry_after).max()
    }

    /// What to do about it.
    pub fn way_out(&self) -> &'static str {
        match self {
            Self::Ca { .. } => "name a file with the CA of the operator's certificate",
            Self::Token { .. } => {
                "name a file with a token: kubectl create token NAME -n NAMESPACE --audience outrider"
            }
            Self::Client(_) => "this is a fault of the agent: please report it",
            Self::Garbage { .. } => "check that the address is an Outrider operator's",
            Self::Unanswered { attempts } => match self.answers().max_by_key(|answer| answer.is_final()) {
                Some(answer) => after_answer(answer.status),
                None => attempts.iter().find_map(after_tls).unwrap_or_else(|| after_silence(attempts)),
            },
        }
    }

    fn answers(&self) -> impl Iterator<Item = &Answer> {
        let attempts = match self {
            Self::Unanswered { attempts } => attempts.as_slice(),
            _ => &[],
        };
        attempts.iter().filter_map(|attempt| match &attempt.failure {
            Failure::Answer(answer) => Some(answer),
            _ => None,
        })
    }
}

fn after_answer(status: u16) -> &'static str {
    match status {
        401 => {
            "get a new token, which lasts an hour without --duration: kubectl create token NAME -n NAMESPACE --audience outrider"
        }
        403 => "bind this identity to the ExternalNode with an ExternalNodeBinding, or name a node it is bound to",
        404 => "check the node's name and that it isn't being deleted, and that the address is an Outrider operator's",
        429 | 500..=504 => "wait and try again; if it stays so, look at the log of the operator",
        505 => "install an agent and an operator of the same release",
        _ => "look at the log of the operator",
    }
}

/// A certificate that isn't believed is told as what it is.
fn after_tls(attempt: &Attempt) -> Option<&'static str> {
    let Failure::Connect(error) = &attempt.failure else { return None };
    let why = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>())?;
    Some(match why {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "use an address that the operator's certificate names, or issue it a certificate that names this one",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "check the clock of this machine and of the operator's",
        rustls::Error::InvalidCertificate(_) => {
            "check that the CA file is the operator's: the one that its certificate was issued by"
        }
        _ => "check that the address is an Outrider operator's, and that nothing on the way takes TLS apart",
    })
}

fn after_silence(attempts: &[Attempt]) -> &'static str {
    let resolving = |attempt: &Attempt| matches!(attempt.failure, Failure::Resolve(_) | Failure::NoAddress);
    if attempts.iter().all(resolving) {
        "check the name and the resolver of this machine"
    } else {
        "check the address, and that this machine may connect to it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Attempt {
        let failure = Failure::Answer(Answer::new(status, None, body.as_bytes()));
        Attempt { address: "192.0.2.1".parse().unwrap(), socket: "192.0.2.1:10448".parse().ok(), failure }
    }

    fn silent(address: &str) -> Attempt {
        let failure = Failure::Late(Duration::from_secs(15));
        Attempt { address: address.parse().unwrap(), socket: "192.0.2.2:10448".parse().ok(), failure }
    }

    #[test]
    fn every_address_is_told_with_what_came_of_it() {
        let body = r#"{"code":403,"reason":"Forbidden","message":"no binding"}"#;
        let error = CallError::Unanswered { attempts: vec![silent("operator.example.com"), refused(403, body)] };
        assert_eq!(
            error.to_string(),
            "tried operator.example.com:10448 (192.0.2.2:10448): no answer within 15 s; \
             192.0.2.1:10448: answered 403 Forbidden (no binding)"
        );
        assert_eq!(error.kind(), Kind::NotAuthorised);
        assert!(error.way_out().contains("ExternalNodeBinding"));
    }

    #[test]
    fn without_any_answer_the_operator_is_unreachable() {
        let error = CallError::Unanswered { attempts: vec![silent("a.example.com")] };
        assert_eq!((error.kind(), error.retry_after()), (Kind::Unreachable, None));
        assert!(error.way_out().contains("may connect"));
        let error = CallError::Unanswered { attempts: vec![silent("a.example.com"), refused(503, "")] };
        assert_eq!(error.kind(), Kind::Other);
    }

    #[test]
    fn an_answer_of_something_else_is_told_shortly_and_on_one_line() {
        let answer = Answer::new(502, None, format!("<html>\n\x1b[2J{}", "x".repeat(5000)).as_bytes());
        assert_eq!(answer.to_string(), format!("answered 502 (<html>  [2J{})", "x".repeat(189)));
    }
}
