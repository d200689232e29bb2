//! Who writes: of all operator replicas, only the holder of one Lease.
//!
//! ```text
//! API <--get, create, replace--> run <--Action, Event--> Candidate (pure)
//!                                 |
//!                                 +--> watch::Sender<Leadership> --> whoever writes asks is_leading()
//! ```
//!
//! The algorithm is that of client-go. Expiry is judged by a monotonic clock from when *we* saw the record change. A
//! holder that can't renew stops at its own deadline, before anybody may take over, and needs no API to do so. Every
//! write names the resourceVersion it is based on, so a stale one is refused.
//!
//! What no lease can do: a machine that is frozen whole, clock included, wakes up believing that it still leads and
//! finds out at the next renewal. Writes of a leader must carry a resourceVersion where that matters. And who deletes
//! or edits the Lease by hand may make two lead for one retry period.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::jitter;
use candidate::{Action, Candidate, Event, Moment};
use crds::chain::Chain;

mod candidate;
#[cfg(test)]
mod tests;

/// Which lease, who asks for it, and how long things take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the Lease lives.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Unique to this process among all candidates; see [`identity`].
    pub identity: String,
    /// How long others wait after the last renewal that they saw.
    pub lease_duration: Duration,
    /// How long after its last renewal a holder goes on leading.
    pub renew_deadline: Duration,
    /// How long between renewals, and between looks at somebody else's lease.
    pub retry_period: Duration,
}

impl Settings {
    /// The usual times: 15 s, 10 s and 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Half of the deadline: a request that hangs leaves time for another.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }

    fn check(&self) -> Result<(), Error> {
        if self.identity.is_empty() {
            return Err(Error::NoIdentity);
        }
        if self.lease_duration.subsec_nanos() != 0 || self.lease_duration > Duration::from_hours(1) {
            return Err(Error::Duration(self.lease_duration));
        }
        if self.retry_period.is_zero()
            || self.renew_deadline < self.retry_period * 2
            || self.lease_duration <= self.renew_deadline
        {
            return Err(Error::Order(self.clone().into()));
        }
        Ok(())
    }
}

/// Whether this process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Somebody else does, or nobody.
    Following {
        /// The one recorded, whether or not it is alive.
        holder: Option<String>,
    },
    /// This process does.
    Leading {
        /// From when.
        since: Instant,
        /// To when, unless renewed. Moves on with every renewal, without waking those who wait for a change.
        until: Instant,
    },
}

impl Leadership {
    /// What is true before the first answer of the API: start the channel with it.
    pub fn unknown() -> Self {
        Self::Following { holder: None }
    }

    /// Whether this process may write now.
    /// False once the deadline is over, even when the task that renews is stuck.
    pub fn is_leading(&self) -> bool {
        matches!(self, Self::Leading { until, .. } if Instant::now() < *until)
    }

    /// The identity of the one who leads, when it isn't this process and is known.
    pub fn holder(&self) -> Option<&str> {
        match self {
            Self::Following { holder } => holder.as_deref(),
            Self::Leading { .. } => None,
        }
    }

    /// Equal but for the time to which it is extended.
    fn same_term(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leading { since, .. }, Self::Leading { since: other, .. }) => since == other,
            _ => self == other,
        }
    }
}

/// The identity of a replica: its Pod, and where the other replicas reach it.
pub fn identity(pod: &str, address: SocketAddr) -> String {
    format!("{pod}_{address}")
}

/// The address inside an identity, if there is one.
pub fn address(identity: &str) -> Option<SocketAddr> {
    identity.rsplit_once('_')?.1.parse().ok()
}

/// Why an election can't be held at all. That the API fails is no such reason: it is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two candidates without a name would be one.
    #[error("a candidate needs an identity")]
    NoIdentity,
    /// The record counts in seconds.
    #[error("a lease lasts a whole number of seconds up to an hour, not {0:?}")]
    Duration(Duration),
    /// Someone could take over while the holder still leads, or a holder would have no second try.
    #[error(
        "lease duration {:?} must exceed renew deadline {:?}, and that twice the retry period {:?}",
        .0.lease_duration, .0.renew_deadline, .0.retry_period
    )]
    Order(Box<Settings>),
}

/// Takes part in the election until `shutdown`, then releases the lease if held.
///
/// Cancel `shutdown` only when whatever writes as the leader has stopped: the next one takes over at once.
pub async fn run(
    client: Client,
    settings: Settings,
    leading: watch::Sender<Leadership>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let api = Api::namespaced(client, &settings.namespace);
    elect(Kubernetes { api, name: settings.name.clone() }, settings, leading, shutdown).await
}

/// Everything that isn't a decision.
trait Outside: Sync {
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, Trouble>> + Send;
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Trouble>> + Send;
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Trouble>> + Send;
    fn wall(&self) -> Timestamp;
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// Somebody else created, wrote or removed it.
    #[error("the lease changed in between")]
    Conflict,
    #[error("no answer for {0:?}")]
    NoAnswer(Duration),
    #[error("the request failed")]
    Api(#[source] Box<kube::Error>),
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == 409 || status.is_conflict() => Self::Conflict,
            _ => Self::Api(Box::new(error)),
        }
    }
}

struct Kubernetes {
    api: Api<Lease>,
    name: String,
}

impl Outside for Kubernetes {
    async fn get(&self) -> Result<Option<Lease>, Trouble> {
        Ok(self.api.get_opt(&self.name).await?)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Trouble> {
        Ok(self.api.create(&PostParams::default(), lease).await?)
    }

    // Safe although it replaces: LeaseSpec and ObjectMeta have the same fields from Kubernetes 1.33 to 1.37.
    async fn replace(&self, lease: &Lease) -> Result<Lease, Trouble> {
        match self.api.replace(&self.name, &PostParams::default(), lease).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(Trouble::Conflict),
            answer => Ok(answer?),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

async fn elect(
    outside: impl Outside,
    settings: Settings,
    leading: watch::Sender<Leadership>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    settings.check()?;
    let mut candidate = Candidate::new(settings.clone());
    let mut voice = Voice { name: settings.name.clone(), complained: false };
    let mut event = Event::Woke;
    loop {
        let at = Moment { now: Instant::now(), wall: outside.wall(), jitter: jitter::fraction() };
        let action = candidate.step(event, &at);
        publish(&leading, candidate.leadership(Instant::now()));
        let deadline = candidate.leads_until();
        event = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            () = reached(deadline) => Event::Woke,
            event = perform(&outside, &settings, action, &mut voice) => event,
        };
    }
    let held = candidate.resign();
    publish(&leading, candidate.leadership(Instant::now()));
    if held && timeout(settings.request_timeout(), release(&outside, &candidate)).await.is_err() {
        tracing::warn!(lease = settings.name, "could not release the lease in time; others wait until it expires");
    }
    Ok(())
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn perform(outside: &impl Outside, settings: &Settings, action: Action, voice: &mut Voice) -> Event {
    let limit = settings.request_timeout();
    let answer = match action {
        Action::Wait(wait) => {
            sleep(wait).await;
            return Event::Woke;
        }
        Action::Get => timeout(limit, outside.get()).await.map(|got| got.map(Event::Got)),
        Action::Create(lease) => timeout(limit, outside.create(&lease)).await.map(|put| put.map(Event::Wrote)),
        Action::Replace(lease) => timeout(limit, outside.replace(&lease)).await.map(|put| put.map(Event::Wrote)),
    };
    match answer.unwrap_or(Err(Trouble::NoAnswer(limit))) {
        Ok(event) => {
            voice.all_is_well();
            event
        }
        Err(Trouble::Conflict) => Event::Conflict,
        Err(trouble) => {
            voice.complain(&trouble);
            Event::Failed
        }
    }
}

/// Clears the holder, if it is us. A write that was under way at the end may make the first try stale.
async fn release(outside: &impl Outside, candidate: &Candidate) {
    for _ in 0..2 {
        let Ok(Some(lease)) = outside.get().await else { return };
        let Some(lease) = candidate.released(&lease, outside.wall()) else { return };
        match outside.replace(&lease).await {
            Ok(_) => return tracing::info!("released the lease"),
            Err(Trouble::Conflict) => {}
            Err(trouble) => return tracing::warn!(error = %Chain(&trouble), "could not release the lease"),
        }
    }
}

fn publish(leading: &watch::Sender<Leadership>, now: Leadership) {
    leading.send_if_modified(|was| {
        let changed = !was.same_term(&now);
        if changed {
            match &now {
                Leadership::Leading { .. } => tracing::info!("leading"),
                Leadership::Following { holder } => tracing::info!(holder, "following"),
            }
        }
        *was = now;
        changed
    });
}

/// Says once that things fail, and once that they work again.
struct Voice {
    name: String,
    complained: bool,
}

impl Voice {
    fn complain(&mut self, trouble: &Trouble) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(lease = self.name, error = %Chain(trouble), "can't reach the lease; will retry");
        }
    }

    fn all_is_well(&mut self) {
        if std::mem::take(&mut self.complained) {
            tracing::info!(lease = self.name, "the lease can be reached again");
        }
    }
}
