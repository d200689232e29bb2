#!/usr/bin/env bash
# What CI runs: lint, unit tests and laws, and the end-to-end tests, on real parts that are built in the background.
#
# Usage: hack/test.sh          all but the tests that are marked #[ignore] for their length
#        hack/test.sh --all    those, too, and the laws with more cases
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

arguments=()
if [ "${1:-}" = --all ]; then
  arguments=(-- --include-ignored)
  export OUTRIDER_LAW_CASES=${OUTRIDER_LAW_CASES:-2000}
fi

hack/setup.sh

log=$(target)/lab-tools.log
mkdir -p "$(target)"
# A process group of its own, so that a failure here ends the compilers there, too.
set -m
hack/lab-tools.sh > "$log" 2>&1 < /dev/null &
tools=$!
set +m
trap 'kill -- -$tools 2> /dev/null || true' EXIT

hack/lint.sh

say "compiling programs and tests"
cargo build --workspace --all-features --bins
cargo test --workspace --all-features --no-run

if kill -0 "$tools" 2> /dev/null; then say "waiting for the control plane's programs to be built (log: $log)"; fi
wait "$tools" || {
  tail -n 20 "$log" >&2
  fail "the control plane's programs did not build: see the lines above"
}
trap - EXIT

say "tests"
cargo test --workspace --all-features --no-fail-fast "${arguments[@]}" || fail "tests failed: see above"
say "all is well after $SECONDS s"
