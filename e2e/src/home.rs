//! The folder of one running cluster, and the sweeping of those whose process is gone.
//!
//! A living owner holds a lock on `<folder>/lock`; the kernel lets go of it however the owner ends. A folder whose lock
//! can be had is therefore nobody's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// A cluster's folder. Dropping it removes the folder, unless it was to be kept.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    _lock: File,
    kept: AtomicBool,
}

impl Home {
    /// Removes the folders of dead runs and makes a new one.
    pub(crate) fn claim(name: &str) -> anyhow::Result<Self> {
        Self::claim_in(&std::env::temp_dir().join(format!("outrider-lab-{}", nix::unistd::Uid::current())), name)
    }

    fn claim_in(base: &Path, name: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(base).with_context(|| format!("failed to make {}", base.display()))?;
        // Held until our own lock is: a folder that is just being made has none yet and would be swept.
        let door = File::create(base.join("lock"))?;
        door.lock()?;
        sweep(base)?;
        let path = tempfile::Builder::new().prefix(&format!("{name}-{}-", std::process::id())).tempdir_in(base)?.keep();
        let lock = File::create(path.join("lock"))?;
        lock.lock()?;
        Ok(Self { path, _lock: lock, kept: AtomicBool::new(false) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder for people to look at; the next run sweeps it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) {
            // What cannot be removed now is swept by the next run.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn sweep(base: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(base)? {
        let folder = entry?.path();
        let Ok(lock) = File::open(folder.join("lock")) else { continue };
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(&folder);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lives_as_long_as_its_owner() {
        let base = tempfile::tempdir().unwrap();
        let (first, second) = (Home::claim_in(base.path(), "a").unwrap(), Home::claim_in(base.path(), "b").unwrap());
        assert!(first.path().exists(), "the second has left the first alone");
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }

    #[test]
    fn what_a_dead_run_left_is_swept_by_the_next() {
        let base = tempfile::tempdir().unwrap();
        let dead = Home::claim_in(base.path(), "dead").unwrap();
        let path = dead.path().to_owned();
        dead.keep();
        drop(dead);
        assert!(path.exists());
        let _next = Home::claim_in(base.path(), "next").unwrap();
        assert!(!path.exists());
    }
}
