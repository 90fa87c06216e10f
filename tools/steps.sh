# Sourced by the scripts beside it: where things lie, and how progress is shown.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
venv=$root/.venv
stamps=$root/build/stamps
mkdir -p "$stamps"

step_number=0
step_total=${step_total:-0}

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# step TITLE COMMAND...: runs it, and says which step of how many it is and how long it took.
step() {
  step_number=$((step_number + 1))
  local title=$1 started=$SECONDS rc=0
  shift
  printf '\n[%d of %d] %s\n' "$step_number" "$step_total" "$title"
  "$@" || rc=$?
  local verdict=done
  [ "$rc" -eq 0 ] || verdict="failed (exit $rc)"
  printf '[%d of %d] %s: %s, %d s\n' "$step_number" "$step_total" "$title" "$verdict" "$((SECONDS - started))"
  return "$rc"
}

# digest FILE_OR_DIRECTORY...: one hash over names and contents; bytecode, tests and fuzz targets do not count.
digest() {
  find "$@" -type f ! -name '*.pyc' ! -name '*_test.cpp' ! -name '*_fuzz.cpp' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum |
    sha256sum | cut -d' ' -f1
}

fresh() { [ -f "$stamps/$1" ] && [ "$(cat "$stamps/$1")" = "$2" ]; }
stamp() { printf '%s\n' "$2" >"$stamps/$1"; }
