#!/usr/bin/env bash
# Runs every fuzz target with libFuzzer, ASan and UBSan for FUZZ_SECONDS (60) each. What a target found interesting stays
# in build/fuzz/corpus, so that the next run continues from there; an input that fails, or takes over 20 seconds, is written to
# build/fuzz.
# Installs clang 16 if it is missing. With g++ the same targets run as ctest -L fuzz, on random inputs.
step_total=3
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

targets() { find src -name '*_fuzz.cpp' -exec basename {} .cpp \; | LC_ALL=C sort; }

build_targets() {
  # shellcheck disable=SC2046
  cmake --preset fuzz --log-level=WARNING && cmake --build --preset fuzz --target $(targets)
}

fuzz_all() {
  local target rc=0
  for target in $(targets); do
    mkdir -p "build/fuzz/corpus/$target"
    say "$target"
    (cd build/fuzz && "./$target" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=20 -print_final_stats=1 "corpus/$target" 2>&1 |
      grep -E 'stat::|ERROR|SUMMARY|differs|Test unit written'; exit "${PIPESTATUS[0]}") || rc=1
  done
  return "$rc"
}

step "apt packages" install_apt fuzz && step "build the fuzz targets" build_targets && step "fuzz, ${FUZZ_SECONDS:-60} s each" fuzz_all
