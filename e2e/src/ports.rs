//! Free ports for the programs of a cluster.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

/// Below the ports that the kernel hands out for outgoing connections, so that none of those takes a port between our
/// look and the program's start.
const RANGE: Range<u16> = 20_000..32_000;

/// A port that nobody listens on. Each call of a process gives another; where they begin is random, so that labs side by
/// side hardly ever meet.
pub(crate) fn free(address: IpAddr) -> anyhow::Result<u16> {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one("begin")));
    let mut candidates = (0..1000).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(RANGE.end - RANGE.start);
        RANGE.start + u16::try_from(step).expect("the range is one of ports")
    });
    candidates.find(|port| TcpListener::bind((address, *port)).is_ok()).context("no port is free")
}
