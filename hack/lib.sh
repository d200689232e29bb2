# What the scripts of this folder share. Source it from the repository's root.

# A line of progress, on stderr: stdout belongs to the result.
say() { printf '==> %s\n' "$*" >&2; }

# The one line that says why we stop.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Installs the Debian packages that are missing.
packages() {
  local package missing=()
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  [ "$(id -u)" = 0 ] || fail "these packages are missing, and only root can install them: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } < /dev/null 1>&2 ||
    fail "apt-get could not install ${missing[*]}"
}

# Installs Python wheels (NAME==VERSION) into the project's own environment.
venv_install() {
  local wheel wanted=()
  # Two recipes may run at once: one of them makes the environment, the other waits.
  mkdir -p "$(target)"
  exec 8> "$(target)/venv.lock"
  flock 8
  if ! [ -x .venv/bin/pip ]; then
    python3 -c 'import ensurepip' 2> /dev/null || packages python3-venv
    say "making the Python environment .venv"
    python3 -m venv .venv 1>&2 || fail "python3 -m venv .venv failed"
  fi
  for wheel; do
    .venv/bin/pip freeze 2> /dev/null | grep -qixF "$wheel" || wanted+=("$wheel")
  done
  if [ ${#wanted[@]} -gt 0 ]; then
    say "installing ${wanted[*]} into .venv"
    .venv/bin/pip install --quiet "${wanted[@]}" < /dev/null 1>&2 || fail "pip could not install ${wanted[*]}"
  fi
  exec 8>&-
}

# Where cargo builds.
target() { echo "${CARGO_TARGET_DIR:-target}"; }
