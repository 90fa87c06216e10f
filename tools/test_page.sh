#!/usr/bin/env bash
# test_page.sh: tests of the page of a report, its functions and the page in chromium.
# test_page.sh screenshots: its pictures, and one of the terminal, in docs/images.
step_total=6
. "$(dirname "${BASH_SOURCE[0]}")/build.sh"

run_tests() {
  (cd web && npm run --silent check && npm run --silent test) && "$venv/bin/python" -m pytest -q -rs -m slow tests/browser
}

# Of a run in a folder of its own, whose path is in the picture.
picture_of_terminal() {
  local folder
  folder=$(mktemp -d /tmp/demo.XXXX) || return 1
  cp examples/digits.py "$folder"
  (cd "$folder" && "$venv/bin/python" "$root/tools/terminal_picture.py" --columns 110 --rows 48 --until "finitude: " \
    "$root/docs/images/terminal.svg" "$venv/bin/finitude" run digits.py)
}

take_screenshots() {
  picture_of_terminal || return 1
  local out=$root/build/screenshots
  rm -rf "$out"
  mkdir -p "$out" docs/images
  cp zoo/positive/P01_softmax_regression/train.py "$out"
  (cd "$out" && "$venv/bin/finitude" run --report report.json train.py >run.log 2>&1)
  "$venv/bin/finitude" report "$out/report.json" --html "$out/report.html" || return 1
  tr '\n' ' ' <<VIEWS | (cd web && node browser/look.mjs >"$out/look.json")
{"chromium": "$(command -v chromium)", "views": [
  {"file": "$out/report.html", "width": 1280, "height": 1500, "screenshot": "$root/docs/images/report.png"},
  {"file": "$out/report.html", "width": 1280, "height": 1500, "scheme": "dark", "screenshot": "$root/docs/images/report-dark.png"},
  {"file": "$out/report.html", "width": 390, "height": 1500, "screenshot": "$root/docs/images/report-phone.png"}]}
VIEWS
}

if [ "${1:-}" = screenshots ]; then
  setup page && step "packages of web/" tools/web.sh packages && step "extension" build_extension &&
    step "screenshots" take_screenshots
else
  setup page && step "packages of web/" tools/web.sh packages && step "extension" build_extension && step "tests" run_tests
fi
