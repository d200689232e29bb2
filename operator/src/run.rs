//! Puts the parts together: this file is the list of everything that runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use crds::world::watch::watch;
use crds::world::{World, WorldKind};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::event::Events;
use crate::health::Readiness;
use crate::hub::{self, Hub};
use crate::lease::{self, Leadership};
use crate::metrics::{Metrics, OfKind};
use crate::runtime::Runtime;
use crate::serve::{self, App};
use crate::tls::{self, TlsListener};
use crate::writer::Writer;
use crate::{client, files, foreign, health, http, unreadable};

/// Events on their way to the resolver; a watch that is faster waits.
const EVENTS: usize = 4096;

/// How long tasks get to end by themselves.
const GRACE: Duration = Duration::from_secs(15);

/// How often gauges are brought up to date.
const GAUGES: Duration = Duration::from_secs(5);

/// Runs until a signal.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args { listen, health_listen, tls_dir, heartbeat, kubeconfig, namespace, .. } = &args;
    let identity = args.identity();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), identity, "the operator begins");
    let client = client::connect(kubeconfig.as_deref()).await.context("failed to reach the Kubernetes API")?;
    let mut registry = Registry::default();
    let hub = Arc::new(Hub::new(World::waiting_for(WorldKind::ALL), *heartbeat, Metrics::new(&mut registry)));
    let (lead, leading) = channel::channel(Leadership::unknown());

    // before anything says that we are ready
    let agents = TlsListener::bind(*listen, tls_dir, tls::Options::default()).await;
    let agents = agents.with_context(|| format!("failed to serve agents on {listen}"))?;

    let mut runtime = Runtime::new(GRACE);
    let shutdown = runtime.shutdown();
    let readiness = {
        let hub = Arc::clone(&hub);
        Readiness::new(move || hub.live().world().missing().map(|kind| kind.to_string()).collect())
    };
    let (health, registry) = (http::listen(*health_listen).await?, Arc::new(registry));
    runtime.spawn("health", quietly(health::serve(health, readiness, registry, shutdown.clone())));

    let (events, inbox) = mpsc::channel(EVENTS);
    for kind in WorldKind::ALL {
        runtime
            .spawn(format!("watch of {kind}"), until(shutdown.clone(), watch(client.clone(), *kind, events.clone())));
    }
    runtime.spawn("resolver", until(shutdown.clone(), hub::resolve(Arc::clone(&hub), inbox)));

    let app = App::new(Arc::clone(&hub), client.clone(), leading.clone(), *heartbeat, shutdown.clone());
    let router = serve::router(Arc::new(app));
    runtime.spawn("agents' API", quietly(http::serve(agents, router, bounds(), shutdown.clone())));

    let events = Events::new(client.clone(), identity.clone());
    let writer = Writer {
        hub: Arc::clone(&hub),
        client: client.clone(),
        leading: leading.clone(),
        events: events.clone(),
        beat: *heartbeat,
    };
    let settings = lease::Settings::new(namespace.clone(), "outrider-operator", identity);
    runtime.spawn(
        "writer and its Lease",
        lead_and_write(client.clone(), hub.clone(), settings, lead, writer, shutdown.clone()),
    );
    runtime.spawn("gauges", until(shutdown, observe(hub, leading, events, namespace.clone())));
    Ok(runtime.run().await?)
}

/// How many connections of agents there may be, which is not more than there may be files.
fn bounds() -> http::Options {
    let options = http::Options::default();
    let limit = files::raise_limit().unwrap_or_else(|error| {
        tracing::warn!(%error, "can't raise the limit of open files");
        1024
    });
    let connections = files::connections(limit, options.connections);
    if connections < options.connections {
        tracing::warn!(limit, connections, "the limit of open files allows fewer connections of agents than usual");
    }
    http::Options { connections, ..options }
}

/// Holds the Lease, and writes while it is held. The Lease is released only when nothing is written any more: the next
/// holder begins at once.
async fn lead_and_write(
    client: Client,
    hub: Arc<Hub>,
    settings: lease::Settings,
    lead: channel::Sender<Leadership>,
    writer: Writer,
    shutdown: CancellationToken,
) -> Result<(), lease::Error> {
    // who can't compute anything yet must not keep others from writing
    let ready = async {
        let mut work = hub.work();
        while !hub.live().world().ready() && work.changed().await.is_ok() {}
    };
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        () = ready => {}
    }
    tracing::info!("every kind was listed: agents are served");
    let release = CancellationToken::new();
    let written = async {
        writer.run(shutdown).await;
        release.cancel();
    };
    let ((), held) = tokio::join!(written, lease::run(client, settings, lead, release.clone()));
    held
}

async fn quietly(task: impl Future<Output = ()>) -> Result<(), std::convert::Infallible> {
    task.await;
    Ok(())
}

async fn until(shutdown: CancellationToken, task: impl Future<Output = ()>) -> Result<(), std::convert::Infallible> {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = task => {}
    }
    Ok(())
}

/// Keeps the gauges that nobody else sets, and says it when another product owns the shared kinds.
async fn observe(hub: Arc<Hub>, leading: channel::Receiver<Leadership>, events: Events, namespace: String) {
    let mut every = tokio::time::interval(GAUGES);
    let mut said: Option<tokio::time::Instant> = None;
    loop {
        every.tick().await;
        let (counts, foreign) = {
            let live = hub.live();
            let counts: Vec<_> = WorldKind::ALL
                .iter()
                .map(|kind| (*kind, live.world().count(*kind).0, unreadable::count(live.world(), *kind)))
                .collect();
            (counts, foreign::owner(live.world(), jiff::Timestamp::now()))
        };
        for (kind, all, invalid) in counts {
            let label = OfKind { kind: kind.to_string() };
            hub.metrics.objects.get_or_create(&label).set(i64::try_from(all).unwrap_or(i64::MAX));
            hub.metrics.invalid_objects.get_or_create(&label).set(i64::try_from(invalid).unwrap_or(i64::MAX));
            if kind.is_shared() {
                hub.metrics.foreign_owner.get_or_create(&label).set(i64::from(foreign.is_some()));
            }
        }
        if foreign.is_none() && said.take().is_some() {
            tracing::info!("no other controller owns the kinds of crd.antrea.io any more: they are written again");
        }
        if let Some(why) = foreign
            && said.is_none_or(|at| at.elapsed() >= foreign::SAY)
        {
            said = Some(tokio::time::Instant::now());
            tracing::warn!("nothing of crd.antrea.io is written: {why}");
            if leading.borrow().is_leading() {
                events.foreign(&namespace, &why).await;
            }
        }
    }
}
