#!/usr/bin/env bash
# docs.sh [serve]: the site of docs/ in build/site, with search; a dead link or a page that no menu names fails. Needs the
# packages of requirements/docs.txt, in a virtual environment of their own. serve: on http://127.0.0.1:8000, rebuilt as
# files change.
set -eu
cd "$(dirname "$0")/.."
python=${PY:-.venv/bin/python} venv=build/docs-venv
stamp=$(sha256sum requirements/docs.txt)
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/docs.txt
  printf '%s\n' "$stamp" > "$venv/stamp"
fi
export NO_MKDOCS_2_WARNING=1
[ "${1:-}" != serve ] || exec "$venv/bin/mkdocs" serve --quiet
"$venv/bin/mkdocs" build --strict --quiet
