#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, and checks the Rust toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

packages gcc libc6-dev util-linux ca-certificates curl

# What the host half of the agent works with. Tests start an Open vSwitch of their own and never use the system's.
packages iproute2 nftables ethtool procps openvswitch-switch openvswitch-common

wanted=$(awk -F '"' '$1 ~ /^channel/ { print $2 }' rust-toolchain.toml)
for tool in cargo "cargo fmt" "cargo clippy"; do
  $tool --version > /dev/null 2>&1 || fail "$tool does not run: install Rust $wanted with its rustfmt and clippy"
done
found=$(cargo --version | awk '{ print $2 }')
[ "$found" = "$wanted" ] || fail "Rust $wanted is needed (rust-toolchain.toml), this is $found"
