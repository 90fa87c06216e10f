#!/usr/bin/env bash
# `make gpu-pack`: one folder build/gpu-pack for a machine with a GPU that has neither network nor compiler; `./run` in it does what
# `make gpu` does. ARGS=PYTHON:TORCH of that machine (default: 3.12:2.11). Needs an nvcc, no GPU.
step_total=4
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
pair=${1:-3.12:2.11}
[[ $pair =~ ^3\.[0-9]+:2\.[0-9]+(\.[0-9]+)?$ ]] || die "$pair: want PYTHON:TORCH, such as 3.12:2.11"
python_version=${pair%%:*} torch_version=${pair#*:}
pack=$root/build/gpu-pack built=$root/build/gpu-programs most_mb=50
minor=$(cut -d. -f2 <<<"$torch_version")

wheel() {  # the newest one that holds that engine
  local found
  for found in $(ls -t build/wheels/dist/finitude-*-cp"${python_version/./}"-*.whl 2>/dev/null); do
    "$venv/bin/python" -m zipfile -l "$found" | grep -q "_engines/torch2_$minor/" && printf '%s\n' "$found" && return
  done
  return 1
}

engine() { wheel >/dev/null || "$venv/bin/python" tools/wheels.py "$pair"; }

programs() {
  cmake -S . -B "$built" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFINITUDE_TESTS=ON -DFINITUDE_TORCH=OFF -DFINITUDE_CUDA=ON \
    --log-level=WARNING && cmake --build "$built" --target finitude_cuda finitude_cuda_test_program finitude_scan_bench_program
}

packages() {  # of the tests, for that Python
  "$venv/bin/python" -m pip download --disable-pip-version-check --quiet --dest "$pack/packages" --python-version "$python_version" \
    --only-binary=:all: $(grep -E '^(pytest|pytest-xdist|numpy)==' requirements/*.txt -h | sort -u)
}

assemble() {
  mkdir -p "$pack"/{tools,programs,tests/gpu,bench} &&
    cp "$(wheel)" "$pack" && cp tools/steps.sh tools/gpu_steps.sh "$pack/tools" && cp tools/gpu_pack_run.sh "$pack/run" &&
    cp "$built"/{finitude_cuda_test,finitude_scan_bench,libfinitude_cuda.so} "$pack/programs" &&
    cp tests/*.py pyproject.toml "$pack/tests" && cp tests/gpu/test_cuda_*.py "$pack/tests/gpu" && cp -r bench/gpu "$pack/bench" &&
    printf 'finitude %s for Python %s, torch %s\n' "$(git rev-parse --short HEAD)" "$python_version" "$torch_version" >"$pack/about.txt"
}

rm -rf "$pack"
step "the wheel" engine && step "programs" programs && step "packages of the tests" packages && step "the folder" assemble || exit 1
size=$(du -sm "$pack" | cut -f1)
[ "$size" -le "$most_mb" ] || die "$pack is $size MB, more than $most_mb"
say "$pack: $size MB; there: ./run"
