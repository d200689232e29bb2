//! How many files the process may have open: each connection is one.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files for everything but the agents' connections: health, the API server, certificates, logs.
const OTHERS: u64 = 256;

/// Fewer connections than this are no use.
const LEAST: usize = 64;

/// Raises the limit as far as it may be raised without a privilege; what it is then. Many systems begin at 1,024, for
/// programs that can't deal with more.
pub fn raise_limit() -> Result<u64, nix::Error> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// How many connections there may be at once, of `wanted`, with `limit` files: some are left for everything else.
pub fn connections(limit: u64, wanted: usize) -> usize {
    usize::try_from(limit.saturating_sub(OTHERS)).unwrap_or(usize::MAX).max(LEAST).min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(connections(1024, 20_000), 768);
        assert_eq!(connections(1_048_576, 20_000), 20_000);
        assert_eq!(connections(100, 20_000), LEAST, "it will be tight, and says so");
        assert_eq!(connections(u64::MAX, 20_000), 20_000);
    }

    #[test]
    fn the_limit_is_raised_to_what_the_system_allows() {
        let limit = raise_limit().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (limit, limit));
    }
}
