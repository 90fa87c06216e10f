#!/usr/bin/env bash
# test_frameworks.sh [exports]: the tests with real frameworks (label `frameworks`), or of `finitude export` with the
# packages that it writes for. Those go into a venv of their own below build/, which sees those of .venv: torch is not
# installed twice, and .venv stays as it is.
step_total=6
kind=${1:-frameworks}
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"
own=$root/build/$kind
results=$root/build/results-$kind

install_packages() {
  local key
  key=$(digest requirements)
  if [ -f "$own/finitude-installed" ] && [ "$(cat "$own/finitude-installed")" = "$key" ]; then
    say "the packages of requirements/$kind.txt are there"
    return 0
  fi
  rm -rf "$own"
  "$venv/bin/python" -m venv "$own" || return 1
  local below='import sysconfig; print(sysconfig.get_paths()["purelib"])'
  "$venv/bin/python" -c "$below" >"$("$own/bin/python" -c "$below")/finitude-venv.pth" || return 1
  # Every package that is needed is named there; nothing may pull in another torch.
  "$own/bin/python" -m pip install --disable-pip-version-check --no-deps -r "requirements/$kind.txt" || return 1
  printf '%s\n' "$key" >"$own/finitude-installed"
}

run_tests() {
  local tests=(-m frameworks tests/frameworks)
  [ "$kind" = frameworks ] || tests=(tests/look/test_export.py tests/doctor/test_doctor_logs.py)
  "$own/bin/python" -m pytest -q -rs --durations=10 --junitxml "$results/pytest-$kind.xml" "${tests[@]}"
}

rm -rf "$results"
mkdir -p "$results"
setup test && step "extension" build_extension && step "packages" install_packages || exit 1
failed=()
step "tests with them" run_tests || failed=("pytest-$kind=tests with them")
say
"$venv/bin/python" tools/count_tests.py "$results" "${failed[@]+"${failed[@]}"}"
