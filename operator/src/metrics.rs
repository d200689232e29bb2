//! What Prometheus is told. Names and labels are documented in `docs/reference/metrics.md`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// A label for the kind of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfKind {
    /// The kind, as `ExternalNode`.
    pub kind: String,
}

/// Labels of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfWrite {
    /// The kind that is written.
    pub kind: String,
    /// `create`, `update`, `update_status` or `delete`.
    pub verb: String,
    /// `ok`, `conflict` or `error`.
    pub outcome: String,
}

/// Labels of a call of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfCall {
    /// `watch` or `report`.
    pub call: String,
    /// The HTTP status.
    pub status: u16,
}

/// Every metric of the operator. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// How long it takes from a batch of events to the views.
    pub resolve_seconds: Histogram,
    /// Objects as last seen.
    pub objects: Family<OfKind, Gauge>,
    /// Objects that can't be decoded, or mean nothing in part and have no condition to tell it.
    pub invalid_objects: Family<OfKind, Gauge>,
    /// Open streams of agents.
    pub streams: Gauge,
    /// Bytes of frames handed to connections.
    pub stream_bytes: Counter,
    /// Calls of agents by outcome.
    pub calls: Family<OfCall, Counter>,
    /// Writes to the API server by outcome.
    pub writes: Family<OfWrite, Counter>,
    /// Work that waits for the writer.
    pub work_waiting: Gauge,
    /// Whether this replica writes.
    pub leading: Gauge,
    /// Kinds that another product's controller owns, so that we don't write them.
    pub foreign_owner: Family<OfKind, Gauge>,
}

impl Metrics {
    /// All of them, registered under `outrider_`.
    pub fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("outrider");
        let all = Self {
            // from 16 microseconds to 2 seconds
            resolve_seconds: Histogram::new(exponential_buckets(16e-6, 2.0, 18)),
            objects: Family::default(),
            invalid_objects: Family::default(),
            streams: Gauge::default(),
            stream_bytes: Counter::default(),
            calls: Family::default(),
            writes: Family::default(),
            work_waiting: Gauge::default(),
            leading: Gauge::default(),
            foreign_owner: Family::default(),
        };
        let Self {
            resolve_seconds,
            objects,
            invalid_objects,
            streams,
            stream_bytes,
            calls,
            writes,
            work_waiting,
            leading,
            foreign_owner,
        } = all.clone();
        registry.register("resolve_seconds", "From a batch of events to the views", resolve_seconds);
        registry.register("objects", "Objects as last seen", objects);
        registry.register(
            "invalid_objects",
            "Objects that can't be decoded, or mean nothing in part and have no condition to tell it",
            invalid_objects,
        );
        registry.register("streams", "Open streams of agents", streams);
        registry.register("stream_bytes", "Bytes of frames handed to connections", stream_bytes);
        registry.register("calls", "Calls of agents by HTTP status", calls);
        registry.register("writes", "Writes to the API server", writes);
        registry.register("work_waiting", "Objects that wait to be looked at by the writer", work_waiting);
        registry.register("leading", "1 on the replica that writes", leading);
        registry.register("foreign_owner", "Kinds that another controller in the cluster owns", foreign_owner);
        all
    }
}
