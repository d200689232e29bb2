#!/usr/bin/env bash
# End-to-end tests alone.
#
# Usage: hack/e2e.sh          all, also those that take long
#        hack/e2e.sh NAME     those of e2e/tests/NAME.rs, or those with NAME in theirs
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

name=${1:-}
files=(e2e/tests/*.rs) filter=()
if [ -e "e2e/tests/$name.rs" ]; then
  files=("e2e/tests/$name.rs")
elif [ -n "$name" ]; then
  mapfile -t files < <(grep -lE "^(async )?fn [a-z0-9_]*$name" e2e/tests/*.rs)
  [ ${#files[@]} -gt 0 ] || fail "there is no e2e/tests/$name.rs, and no test there has $name in its name"
  filter=("$name")
fi
tests=()
for file in "${files[@]}"; do tests+=(--test "$(basename "$file" .rs)"); done

hack/setup.sh
hack/lab-tools.sh > /dev/null
say "compiling"
# The whole workspace as in `make test`: a choice of packages would be a choice of features, and compile anew.
cargo build --workspace --all-features --bins
cargo test --workspace --all-features --no-fail-fast "${tests[@]}" -- --include-ignored "${filter[@]}"
