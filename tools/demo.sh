#!/usr/bin/env bash
# The main job on an ordinary training script: it goes NaN, is stopped before the optimizer applies the step, and the
# report on the terminal names where the NaN was born and why. The script's non-zero exit is the expected outcome.
step_total=5
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"
script=examples/digits.py
out=build/demo

run_demo() {
  rm -rf "$out"
  mkdir -p "$out"
  say "$ finitude run --report $out/report.json --runs $out $script"
  say
  "$venv/bin/finitude" run --report "$out/report.json" --runs "$out" "$script"
  local rc=$?
  say
  if [ ! -f "$out/report.json" ]; then
    say "finitude wrote no report (exit code $rc)"
    return 1
  fi
  "$venv/bin/python" - "$out/report.json" "$rc" <<'PYTHON'
import json, sys
report, code = json.load(open(sys.argv[1])), int(sys.argv[2])
alarms = report["alarms"]
if report["outcome"] != "alarm" or not alarms or code == 0:
    sys.exit(f"The demo should have been stopped; it ended with exit code {code} and outcome {report['outcome']}.")
print(f"The script was stopped at step {alarms[0]['step']} and ended with exit code {code}, as it should.")
PYTHON
}

started=$SECONDS
setup demo && step "extension" build_extension && step "a training that goes NaN" run_demo || exit 1
say
say "make demo: $((SECONDS - started)) s. Written:"
find "$root/$out" -type f | LC_ALL=C sort | sed 's/^/  /'
