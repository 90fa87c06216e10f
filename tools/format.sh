#!/usr/bin/env bash
# format.sh [--check]: formats the sources of both languages in place; with --check changes nothing and fails where a file differs, and
# where the linter objects. Settings: pyproject.toml and .clang-format.
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

cpp_sources() { git ls-files -z -- '*.cpp' '*.h' '*.cu' ':!examples' ':!zoo'; }

if [ "${1:-}" = --check ]; then
  rc=0
  "$venv/bin/ruff" format --check --quiet . || { rc=1; "$venv/bin/ruff" format --check . | head -20; }
  "$venv/bin/ruff" check --quiet . || rc=1
  cpp_sources | xargs -0 -n 40 -P "$(nproc)" "$venv/bin/clang-format" --dry-run -Werror || rc=1
  "$venv/bin/python" -m mypy --no-error-summary || rc=1
  "$venv/bin/python" tools/types_check.py || rc=1
  "$venv/bin/python" tools/house.py || rc=1
  [ "$rc" -eq 0 ] || say "make format mends what is a matter of format"
  exit "$rc"
fi
"$venv/bin/ruff" check --quiet --select I --fix . && "$venv/bin/ruff" format --quiet . &&
  cpp_sources | xargs -0 -n 40 -P "$(nproc)" "$venv/bin/clang-format" -i
