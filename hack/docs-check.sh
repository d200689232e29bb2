#!/usr/bin/env bash
# Fails when a document names a path of this repository that does not exist.
#
# A path is what stands in backticks and begins with one of the top folders, or is a file name with an ending we use;
# and what a link points to. `<name>` and `*` stand for anything.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

folders='agent|charts|crds|docs|e2e|hack|operator|webhook|packaging|\.ci|\.github'
endings='rs|sh|md|toml|yaml|yml|go|mod|sum|nft|txt'
shopt -s nullglob globstar
missing=0

# Is there a file like this, from the root, or beside the document?
exists() { # PATH DOCUMENT
  local found=()
  found=($1 "$(dirname "$2")"/$1)
  local path
  for path in "${found[@]}"; do [ ! -e "$path" ] || return 0; done
  return 1
}

complain() {
  printf '%s: there is no %s\n' "$1" "$2" >&2
  missing=$((missing + 1))
}

# shellcheck disable=SC2016 # The backticks are meant.
for document in README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md bench/README.md docs/**/*.md; do
  [ -e "$document" ] || continue
  while read -r path; do
    exists "$(sed -E 's/<[^>]*>/*/g' <<< "$path")" "$document" || complain "$document" "$path"
  done < <(grep -oE '`[^` ]+`' "$document" | tr -d '`' | grep -E "^(($folders)/[^:]*|[A-Za-z0-9_.-]+\.(rs|sh|md|toml))$" | sort -u)
  while read -r path; do
    exists "$path" "$document" || complain "$document" "$path (a link)"
  done < <(grep -oE '\]\([^)# ]+' "$document" | sed 's/^](//' | grep -vE '^[a-z]+:' | sort -u)
done
[ $missing = 0 ] || fail "$missing paths in documents do not exist"
