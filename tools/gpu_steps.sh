# Sourced by tools/gpu.sh and by `run` of a GPU pack, behind steps.sh: what is run on a machine with a GPU, the most important first.
# They set: python, package (the folder that `finitude` is imported from), programs (finitude_cuda_test and finitude_scan_bench),
# tests and bench (those folders of the source tree), results.

gpu_steps=6

# limited SECONDS COMMAND...: a step that hangs does not cost the others. All together come to less than 8 minutes; GPU_PATIENCE is a factor.
limited() {
  local seconds=$(($1 * ${GPU_PATIENCE:-1}))
  shift
  timeout -k 5 "$seconds" "$@"
}

run_python() {  # SECONDS WORD...
  PYTHONSAFEPATH=1 PYTHONPATH=$package:$tests FINITUDE_EXPECT_GPU=1 limited "$1" "$python" "${@:2}"
}

run_tests() {  # SECONDS FILE: side by side where pytest-xdist is there, since each program spends most of its time on starting
  local beside=()
  run_python 20 -c 'import xdist' 2>/dev/null && beside=(-n "$(($(nproc) < 12 ? $(nproc) : 12))")
  run_python "$1" -m pytest -q -p no:cacheprovider "${beside[@]}" -m cuda --junitxml="$results/$(basename "$2" .py).xml" "$tests/gpu/$2"
}

benchmarks() {
  limited 40 "$programs/finitude_scan_bench" >"$results/scan.json" &&
    (cd "$results" && run_python 130 "$bench/gpu/torch_bench.py" "$results/torch.json")
}

run_gpu_steps() {  # PAGE: where the table of the benchmarks goes
  local rc=0
  step "the library on the GPU" limited 30 "$programs/finitude_cuda_test" --gtest_brief=1 || rc=1
  step "the gate on the GPU" run_tests 100 test_cuda_gate.py || rc=1
  step "gradients read during backward, on the GPU" run_tests 60 test_cuda_stream.py || rc=1
  step "tapes on the GPU" run_tests 60 test_cuda_tape.py || rc=1
  step "benchmarks" benchmarks || rc=1
  step "the table of the benchmarks" "$python" "$bench/gpu/report.py" "$results/scan.json" "$results/torch.json" "$1" || rc=1
  return $rc
}

missing() { printf '%s: %s\n' "$gpu_who" "$1" >&2; exit 1; }

need_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/nvidia0 ] || missing "there is no NVIDIA GPU on this machine"; }

has_cuda_torch() {
  "$1" -c 'import sys, importlib.util as u
sys.exit(not u.find_spec("torch") or not __import__("torch").version.cuda)' 2>/dev/null
}

find_gpu_python() {  # CANDIDATE...: sets python
  local candidate
  for candidate in ${GPU_PYTHON:-"$@"}; do
    if command -v "$candidate" >/dev/null && has_cuda_torch "$candidate"; then
      python=$(command -v "$candidate")
      "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || missing "torch of $python finds no GPU it can use"
      return
    fi
  done
  missing "no Python with a CUDA build of torch; set GPU_PYTHON"
}
