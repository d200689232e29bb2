#!/usr/bin/env bash
# Builds and runs one of e2e's programs, with our own programs and the control plane's ready beside it.
#
# Usage: hack/run.sh demo [--stay]
#        hack/run.sh bench NAME     optimised; the last line on stdout is the result
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

program=$1
shift
hack/setup.sh
hack/lab-tools.sh > /dev/null
say "compiling"
if [ "$program" = bench ]; then
  [ -n "${1:-}" ] || fail "which one? make bench B=name"
  # nothing that no bench runs: the optimiser takes minutes for each
  cargo build --release --workspace --all-features --bin bench --bin outrider-operator --bin outrider-agent
  exec "$(target)/release/$program" "$@"
fi
cargo build --workspace --all-features --bins
exec "$(target)/debug/$program" "$@"
