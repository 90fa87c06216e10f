#!/usr/bin/env bash
# `make gpu`: on a machine with a GPU, every test that needs one, then the benchmarks; writes docs/overhead-gpu.md. Elsewhere it says
# what is missing. Nothing is installed: GPU_PYTHON=/path/to/python names an interpreter with a CUDA build of torch and pytest.
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
. "$root/tools/gpu_steps.sh"
step_total=$((gpu_steps + 2))
gpu_who="make gpu"
build=$root/build/gpu
package=$build/python programs=$build tests=$root/tests bench=$root/bench results=$build
export GPU_PATIENCE=${GPU_PATIENCE:-2}

need_gpu
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null) || missing "there is no nvcc; install the CUDA toolkit or set CUDA_HOME"
for tool in cmake ninja; do command -v "$tool" >/dev/null || missing "there is no $tool"; done
find_gpu_python "$venv/bin/python" python3 python
"$python" -c 'import pytest' 2>/dev/null || missing "$python has no pytest"

build_all() {
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFINITUDE_TESTS=ON -DFINITUDE_TORCH=ON -DFINITUDE_CUDA=ON \
    -DFINITUDE_NVCC="$nvcc" -DPython_EXECUTABLE="$python" --log-level=WARNING &&
    cmake --build "$build" --target _native finitude_cuda finitude_cuda_test_program finitude_scan_bench_program
}

stage() {  # the package as a wheel would install it
  rm -rf "$package" && mkdir -p "$package" && cp -r python/finitude "$package/" &&
    cp -r "$build/_engines" "$build/libfinitude_cuda.so" "$package/finitude/"
}

step "build" build_all && step "the package" stage || exit 1
run_gpu_steps "$root/docs/overhead-gpu.md"
