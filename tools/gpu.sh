#!/usr/bin/env bash
# `make gpu`: on a machine with a GPU, every test that needs one, then the benchmarks; writes docs/overhead-gpu.md. Elsewhere it says
# what is missing. Nothing is installed: GPU_PYTHON=/path/to/python names an interpreter with a CUDA build of torch and pytest.
step_total=8
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
build=$root/build/gpu
staged=$build/python

missing() { printf 'make gpu: %s\n' "$1" >&2; exit 1; }

has_cuda_torch() {
  "$1" -c 'import sys, importlib.util as u
sys.exit(not u.find_spec("torch") or not __import__("torch").version.cuda)' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${GPU_PYTHON:-"$venv/bin/python" python3 python}; do
    if command -v "$candidate" >/dev/null && has_cuda_torch "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
}

[ -e /dev/nvidiactl ] || [ -e /dev/nvidia0 ] || missing "there is no NVIDIA GPU on this machine"
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null) || missing "there is no nvcc; install the CUDA toolkit or set CUDA_HOME"
for tool in cmake ninja; do command -v "$tool" >/dev/null || missing "there is no $tool"; done
python=$(find_python)
[ -n "$python" ] || missing "no Python with a CUDA build of torch; set GPU_PYTHON"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || missing "torch of $python finds no GPU it can use"
"$python" -c 'import pytest' 2>/dev/null || missing "$python has no pytest"

build_all() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFINITUDE_TESTS=ON -DFINITUDE_TORCH=ON -DFINITUDE_CUDA=ON \
    -DFINITUDE_NVCC="$nvcc" -DPython_EXECUTABLE="$python" --log-level=WARNING &&
    cmake --build "$build" --target _native finitude_cuda finitude_cuda_test_program finitude_scan_bench_program
}

stage() {  # the package as a wheel would install it
  rm -rf "$staged" && mkdir -p "$staged" && cp -r python/finitude "$staged/" &&
    cp -r "$build/_engines" "$build/libfinitude_cuda.so" "$staged/finitude/"
}

run_python() { PYTHONSAFEPATH=1 PYTHONPATH=$staged:$root/tests FINITUDE_EXPECT_GPU=1 "$python" "$@"; }

run_tests() {  # side by side where pytest-xdist is there: each program spends most of its time on starting
  local beside=()
  "$python" -c 'import xdist' 2>/dev/null && beside=(-n "$(($(nproc) < 12 ? $(nproc) : 12))")
  run_python -m pytest -q "${beside[@]}" -m cuda "$@"
}

benchmarks() {
  "$build/finitude_scan_bench" >"$build/scan.json" && (cd "$build" && run_python "$root/bench/gpu/torch_bench.py" "$build/torch.json")
}

rc=0
step "build" build_all && step "the package" stage || exit 1
step "the library on the GPU" "$build/finitude_cuda_test" --gtest_brief=1 || rc=1
step "the gate on the GPU" run_tests tests/gpu/test_cuda_gate.py || rc=1
step "gradients read during backward, on the GPU" run_tests tests/gpu/test_cuda_stream.py || rc=1
step "tapes on the GPU" run_tests tests/gpu/test_cuda_tape.py || rc=1
step "benchmarks" benchmarks && step "docs/overhead-gpu.md" "$python" bench/gpu/report.py "$build/scan.json" "$build/torch.json" docs/overhead-gpu.md || rc=1
exit $rc
