#!/usr/bin/env bash
# Writes the generated files: the definitions of our kinds in the Helm chart.
#
# Usage: hack/gen.sh           write them
#        hack/gen.sh --check   fail when one differs from what would be written
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

cargo build --quiet --workspace --all-features --bin crdgen
"$(target)/debug/crdgen" "$@" || fail "generated files are out of date, or cannot be written: run \`make gen\` and commit"
