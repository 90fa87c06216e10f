#!/usr/bin/env bash
# The tests with real frameworks (label `frameworks`). Their packages go into a venv of their own, build/frameworks, which
# sees those of .venv: torch is not installed twice, and .venv stays as it is.
step_total=6
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"
own=$root/build/frameworks
results=$root/build/results-frameworks

install_frameworks() {
  local key
  key=$(digest requirements)
  if [ -f "$own/finitude-installed" ] && [ "$(cat "$own/finitude-installed")" = "$key" ]; then
    say "the packages of requirements/frameworks.txt are there"
    return 0
  fi
  rm -rf "$own"
  "$venv/bin/python" -m venv "$own" || return 1
  local below='import sysconfig; print(sysconfig.get_paths()["purelib"])'
  "$venv/bin/python" -c "$below" >"$("$own/bin/python" -c "$below")/finitude-venv.pth" || return 1
  # Every package that is needed is named there; nothing may pull in another torch.
  "$own/bin/python" -m pip install --disable-pip-version-check --no-deps -r requirements/frameworks.txt || return 1
  printf '%s\n' "$key" >"$own/finitude-installed"
}

run_tests() {
  "$own/bin/python" -m pytest -q -rs --durations=10 -m frameworks --junitxml "$results/pytest-frameworks.xml" tests/frameworks
}

rm -rf "$results"
mkdir -p "$results"
setup test && step "extension" build_extension && step "frameworks" install_frameworks || exit 1
failed=()
step "tests with the frameworks" run_tests || failed=("pytest-frameworks=tests with the frameworks")
say
"$venv/bin/python" tools/count_tests.py "$results" "${failed[@]+"${failed[@]}"}"
