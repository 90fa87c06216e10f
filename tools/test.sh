#!/usr/bin/env bash
# Every test: set-up, format and lint, the C++ core under ASan+UBSan, what threads share under TSan, the extension, its core and
# the C++ API as they ship, then pytest by label.
# test.sh WORD: only the extension, and the Python tests in tests/WORD and in files whose names contain WORD, of every label that a
# whole run runs.
# A step that fails does not keep the later ones from running; the last line counts what the test programs reported.
step_total=14
[ "$#" -eq 0 ] || step_total=5
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"
results=$root/build/results
broken=$results/broken  # a line RESULT=TITLE for each step that failed; RESULT.xml, or RESULT.*.xml, hold its tests

configure_and_build() {
  cmake --preset "$1" --log-level=WARNING && cmake --build --preset "$1"
}

# run_gtest NAME PROGRAM: its tests in parts, one for each core at a time, with their results kept as JUnit XML,
# NAME.PROGRAM.PART.xml. There are more parts than cores: no core waits for the part that happens to hold the long
# tests. A process for each test, as ctest has it, takes far longer under sanitizers. Each part may take 15 minutes.
run_gtest() {
  local name=$1.$(basename "$2") parts=$((6 * $(nproc)))
  (cd "$(dirname "$2")" && export GTEST_TOTAL_SHARDS=$parts && seq 0 "$((parts - 1))" |
    xargs -P "$(nproc)" -I % bash -c '  # xargs would end with a part that is killed
      GTEST_SHARD_INDEX=% timeout 900 "$0" --gtest_brief=1 --gtest_output="xml:$1.%.xml" || exit 1' "$2" "$results/$name")
}

# pytest NAME LABEL_EXPRESSION [DISTRIBUTION [PATH...]]: one process for each core and one more, since they wait for programs.
# loadscope keeps the tests of a file in one of them, with what they share; loadgroup is that of tests/conftest.py. A test that takes
# fifteen minutes hangs: it fails, and the others run. What pytest has made of the files of tests is kept: each process of each label
# reads it. Exit code 5 means that no test carries the label.
run_pytest() {
  env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -m pytest -q -rs --durations=5 --timeout 900 -n "$(($(nproc) + 1))" \
    --dist "${3:-loadscope}" -m "$2" --junitxml "$results/pytest-$1.xml" "${@:4}"
}

run_python() {
  local rc=0
  run_pytest python "(slow or not zoo) and not thorough and not frameworks and not timed" loadgroup zoo tests || rc=$?
  run_pytest python.timed timed loadgroup tests/browser || rc=$?  # alone: how long a page takes is judged
  return "$rc"
}

# The tests of a preset: of the core, and where it builds them of the command line, and the fuzz targets with their seeds.
run_native() {
  local preset=$1 folder=$root/build/$1 program rc=0
  for program in "$folder/finitude_core_test" "$folder/src/cli/finitude_cli_test"; do
    [ ! -x "$program" ] || run_gtest "$preset" "$program" || rc=$?
  done
  if compgen -G "$folder/*_fuzz" >/dev/null; then
    ctest --preset "$preset" -L fuzz --output-junit "$results/$preset.fuzz.xml" | sed -u '/Passed/d; /Start/d'
    [ "${PIPESTATUS[0]}" -eq 0 ] || rc=1
  fi
  return "$rc"
}

# What C++ programs link, and the tests of kernels and ring as they ship, are made of what the extension was made of, so they are built
# in the same folder. That folder may have been configured before the test packages were installed, by `make demo`: so it is
# configured again.
run_shipped() {
  local folder
  folder=$(ls -td "$root"/build/cp3*/ | head -1)
  cmake -U CMAKE_DISABLE_FIND_PACKAGE_GTest --log-level=WARNING "$folder" || return 1
  cmake --build "$folder" --target finitude_shipped_tests finitude_cpp_tests || return 1
  local rc=0
  run_gtest shipped "$folder/finitude_shipped_test" || rc=$?
  ctest --test-dir "$folder" -L cpp -j 2 --no-tests=error --output-on-failure \
    --output-junit "$results/shipped.cpp.xml" | sed -u '/Passed/d; /Start/d'
  [ "${PIPESTATUS[0]}" -eq 0 ] || rc=1
  return "$rc"
}

# The tests of one subject. A failed step without results (no such file, say) counts as one failure.
run_subject() {
  local files
  mapfile -t files < <(find tests zoo -path "tests/$1/test_*.py" -o -name "test_*$1*.py" | LC_ALL=C sort)
  [ "${#files[@]}" -gt 0 ] || { say "there is no folder tests/$1, and no file of tests is named test_*$1*.py"; return 1; }
  run_pytest subject "not thorough and not frameworks" worksteal "${files[@]}"
}

# The page's own functions, without a browser: that is `make test-page`.
run_web() {
  if ! tools/web.sh packages; then
    say "the page of a report is not tested here"
    return 0
  fi
  (cd web && npm run --silent check && npm run --silent test -- --reporter=default --reporter=junit \
    --outputFile="$results/vitest.xml")
}

attempt() {  # RESULT TITLE COMMAND...: a step whose failure is remembered
  local result=$1
  shift
  step "$@" || printf "%s\n" "$result=$1" >>"$broken"
}

native_suite() {  # PRESET TITLE
  local preset=$1 title=$2
  if step "build $title" configure_and_build "$preset"; then
    attempt "$preset" "$title" run_native "$preset"
  else
    printf "%s\n" "$preset=build $title" >>"$broken"
    step_number=$((step_number + 1))
  fi
}

finish() {
  say
  say "make test: $((SECONDS - started)) s"
  local failed=()
  [ ! -f "$broken" ] || mapfile -t failed <"$broken"
  exec "$venv/bin/python" tools/count_tests.py "$results" "${failed[@]+"${failed[@]}"}"
}

# What needs neither a compiler nor what it makes.
prepare_python() {
  step "pip packages" install_pip test || return 1
  attempt lint "format and lint" tools/format.sh --check
  attempt docs "site of docs/" tools/docs.sh
}

started=$SECONDS
rm -rf "$results"
mkdir -p "$results"
if [ "$#" -gt 0 ]; then
  setup test || exit 1
  if step "extension" build_extension; then
    attempt pytest-subject "tests of $1" run_subject "$1"
  else
    printf "pytest=extension\n" >>"$broken"
  fi
  finish
fi
step "apt packages" install_apt test && step "Python environment" make_venv || exit 1
# That keeps one core busy, and the C++ core needs nothing of it: so both are done at a time. In a process group of its
# own, which an interrupt ends too.
say
say "in the background, to be shown when it is done: pip packages, format and lint, site of docs/"
set -m
prepare_python >"$root/build/prepare.log" 2>&1 </dev/null &
set +m
prepares=$!
trap 'kill -- -"$prepares"; exit 130' INT TERM
step_number=$((step_number + 3))
native_suite asan "C++ core under ASan and UBSan"
native_suite tsan "ring and event sink under TSan"
wait "$prepares"
prepared=$?
trap - INT TERM
cat "$root/build/prepare.log"
if [ "$prepared" -ne 0 ]; then
  printf "pip=pip packages\n" >>"$broken"
  finish
fi
# On a fresh clone, as `make demo` builds it on a machine without the test packages: so each run of the tests shows that a
# demo may come first.
compgen -G "$root/build/cp3*/CMakeCache.txt" >/dev/null ||
  export SKBUILD_CMAKE_DEFINE="${SKBUILD_CMAKE_DEFINE:+$SKBUILD_CMAKE_DEFINE;}CMAKE_DISABLE_FIND_PACKAGE_GTest=ON"
if step "extension" build_extension; then
  attempt shipped "kernels, ring and C++ API as they ship" run_shipped
  attempt vitest "page of a report" run_web
  # One process: it runs two cases at a time.
  attempt pytest-zoo "zoo" run_pytest zoo "zoo and not slow and not thorough" loadscope zoo -n1
  attempt pytest-python "Python tests" run_python
else
  printf "pytest=extension\n" >>"$broken"
fi
finish
