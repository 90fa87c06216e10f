#!/usr/bin/env bash
# Measures the scan kernels beside a plain read of the same memory and beside torch, and writes docs/kernels.md.
# Leave the machine alone meanwhile: the page shows the load average at the start.
step_total=5
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
out=$root/build/bench/kernels.json

build_bench() {
  cmake --preset bench --log-level=WARNING && cmake --build --preset bench --target finitude_bench_sense
}

measure() {
  build/bench/bench/sense/finitude_bench_sense --benchmark_out="$out" --benchmark_out_format=json >"${out%.json}.txt" &&
    "$venv/bin/python" bench/sense/report.py "$out" docs/kernels.md && say "written: docs/kernels.md"
}

setup bench && step "build the benchmark" build_bench && step "measure (about 5 minutes)" measure
