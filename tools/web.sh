#!/usr/bin/env bash
# web.sh: builds the pages, web/dist/timeline.html of a run and web/dist/page.html of a report, where one of its sources has changed. Its last line says why it cannot.
# web.sh packages: only installs the packages of web/package-lock.json, where they have changed.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../web"

refuse() {
  printf '%s\n' "$*" >&2
  exit 1
}

newer_than() {  # FILE PATH...: something at PATH is newer than FILE, or FILE is missing
  [ ! -e "$1" ] || [ -n "$(find "${@:2}" -newer "$1" -print -quit)" ]
}

packages() {
  newer_than node_modules/.installed package-lock.json || return 0
  npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=1 --loglevel=error >&2 ||
    refuse "npm could not install the packages of web/package-lock.json"
  touch node_modules/.installed
}

if [ "${1:-}" != packages ]; then
  newer_than dist/page.html src head.html index.html timeline.html vite.config.ts package-lock.json tsconfig.json || exit 0
fi
command -v node >/dev/null && command -v npm >/dev/null || refuse "node and npm are not here"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
  refuse "node $(node --version) is older than 20.19"
packages
[ "${1:-}" = packages ] && exit 0
rm -rf dist
{ node_modules/.bin/vite build --mode timeline --logLevel error >&2 && node_modules/.bin/vite build --logLevel error >&2; } ||
  refuse "vite could not build web/"
