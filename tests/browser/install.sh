#!/bin/sh
# Install what the tests in this folder need: Chromium and its driver from Debian, axe-core from npm.
#
# Quick if all is there. If something cannot be installed, one line says so, and the tests that need
# it are skipped; with CI=true that is a failure.
set -u
cd "$(dirname "$0")/../.." || exit 1

AXE_VERSION=4.14.0
AXE=.venv/axe-core

give_up() {
  echo "Tests in the browser are skipped: $1" >&2
  [ "${CI:-}" = true ] && exit 1
  exit 0
}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  command -v apt-get >/dev/null || give_up "chromium and chromedriver are missing, and there is no apt-get."
  [ "$(id -u)" = 0 ] || give_up "chromium is missing. As root: apt-get install chromium chromium-driver"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install --yes --no-install-recommends \
      --option DPkg::Lock::Timeout=300 chromium chromium-driver; } >"$work/apt.log" 2>&1 \
    || give_up "apt-get could not install chromium: $(tail -n 1 "$work/apt.log")"
fi

if [ "$(cat "$AXE/version" 2>/dev/null)" != "$AXE_VERSION" ]; then
  command -v npm >/dev/null || give_up "axe-core is missing, and there is no npm."
  mkdir -p "$AXE"
  { npm pack --pack-destination "$work" --fetch-retries 1 --fetch-timeout 60000 \
      "axe-core@$AXE_VERSION" && tar -xzf "$work/axe-core-$AXE_VERSION.tgz" -C "$work" \
      && cp "$work/package/axe.min.js" "$work/package/LICENSE" "$AXE"; } >"$work/npm.log" 2>&1 \
    || give_up "npm could not get axe-core $AXE_VERSION: $(tail -n 1 "$work/npm.log")"
  echo "$AXE_VERSION" >"$AXE/version"
fi
