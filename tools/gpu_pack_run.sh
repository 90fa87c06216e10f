#!/usr/bin/env bash
# `run` of a GPU pack: on a machine with a GPU and a CUDA build of torch, without network or compiler, does what `make gpu` does; results
# go to $OUT (results/ beside this file). GPU_PYTHON names the interpreter, GPU_PATIENCE multiplies the limit of each step.
. "$(dirname "${BASH_SOURCE[0]}")/tools/steps.sh"
. "$root/tools/gpu_steps.sh"
step_total=$((gpu_steps + 1))
gpu_who=gpu-pack
results=${OUT:-$root/results} package=$root/package programs=$root/programs tests=$root/tests bench=$root/bench

need_gpu
find_gpu_python python3 python
mkdir -p "$results"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

unpack() {  # a wheel is an archive: pip is not needed. Of the tests' packages, those that the machine lacks
  "$python" - "$package" "$root"/finitude-*.whl "$root"/packages/*.whl <<'PY'
import importlib.util, pathlib, sys, zipfile
folder, *wheels = sys.argv[1:]
for wheel in wheels:
    name = pathlib.Path(wheel).name.split("-")[0]
    if name != "finitude" and importlib.util.find_spec(name.removeprefix("pytest_")):
        continue
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            path = archive.extract(info, folder)
            if (mode := info.external_attr >> 16 & 0o777) and not info.is_dir():
                pathlib.Path(path).chmod(mode)
PY
  { nvidia-smi -L; cat "$root/about.txt"; } >"$results/machine.txt" 2>&1
  run_python 60 -c 'import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda)
from finitude import _native' >>"$results/machine.txt" 2>&1
  local rc=$?
  cat "$results/machine.txt"
  return $rc
}

{ step "the package" unpack && run_gpu_steps "$results/overhead-gpu.md"; rc=$?; } > >(tee "$results/gpu.log") 2>&1
printf '%s: exit %d after %d s; results: %s\n' "$gpu_who" "$rc" "$SECONDS" "$results"
exit $rc
