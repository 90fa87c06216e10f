#!/usr/bin/env bash
# Builds the extension against the torch in .venv and installs the package there, as a user's `pip install .` would.
# Nothing happens where no source, compiler, Python or torch has changed; the build folder persists, so that a change
# compiles only what it touches.
[ -n "${step_total:-}" ] || step_total=4
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

build_key() {
  digest src include cmake python web/src web/head.html web/index.html web/timeline.html web/vite.config.ts web/package-lock.json CMakeLists.txt pyproject.toml VERSION \
    tools/build.sh tools/web.sh
  "${CXX:-c++}" --version | head -1
  nvcc --version 2>/dev/null | tail -1
  "$venv/bin/python" --version
  sha256sum "$venv"/lib/python3*/site-packages/torch/version.py
}

build_extension() {
  local key log=$root/build/extension.log
  key=$(build_key) || return 1
  if fresh extension "$key" && compgen -G "$venv/lib/python3*/site-packages/finitude/_engines/*/_native*.so" >/dev/null; then
    say "nothing has changed since the last build"
    return 0
  fi
  rm -f "$stamps/extension"
  # -v because pip shows nothing of a build otherwise; of that, ninja's progress lines go to the terminal.
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
    "$venv/bin/python" -m pip install --disable-pip-version-check -v --no-build-isolation --no-deps --no-index \
    --force-reinstall . 2>&1 | tee "$log" | sed -un 's/^ *\(\[[0-9]*\/[0-9]*[] ].*\)/  \1/p; s/^ *\(page: .*\)/  \1/p'
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    say "the build failed; its end is below, all of it in build/extension.log"
    tail -n 60 "$log"
    return 1
  fi
  stamp extension "$key"
}

# build.sh [demo|test|bench|lines]: with the packages that the caller needs besides.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  setup "${1:-demo}" && step "extension" build_extension
fi
