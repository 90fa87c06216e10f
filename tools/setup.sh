#!/usr/bin/env bash
# setup.sh demo|test|bench|lines|page: the apt packages that are missing, .venv, and the pinned pip packages of requirements/.
# What is there already is left alone, so that a warm call takes about a second. pip's own configuration is not touched.
[ -n "${step_total:-}" ] || step_total=3
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

apt_demo=(g++ cmake ninja-build libhwy-dev nlohmann-json3-dev libcli11-dev zlib1g-dev libsqlite3-dev)
apt_test=(libgtest-dev libgmock-dev librapidcheck-dev zsh fish)
apt_bench=(libbenchmark-dev)
apt_lines=(valgrind)
apt_neon=(g++-12-aarch64-linux-gnu qemu-user)
apt_fuzz=(clang-16 libclang-rt-16-dev)
apt_page=(chromium fonts-inter)

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# The pins of requirements/ hold for 3.11 to 3.13; the package itself also runs on 3.10.
find_python() {
  if [ -n "${PYTHON:-}" ]; then
    supported "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13"
    printf '%s\n' "$PYTHON"
    return
  fi
  local candidate
  for candidate in python3 python3.11 python3.12 python3.13; do
    if supported "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
}

has_headers() { "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian keeps venv and the headers in packages of their own; a pyenv or other Python carries both.
apt_for_python() {
  local python
  python=$(find_python) || exit 1
  if [ -z "$python" ]; then
    printf '%s\n' python3 python3-venv python3-dev
    return
  fi
  has_venv "$python" || printf '%s\n' python3-venv
  has_headers "$python" || printf '%s\n' python3-dev
}

missing_apt() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s\n' "$package"
  done
}

install_apt() {
  local python_packages wanted missing
  python_packages=$(apt_for_python) || return 1
  wanted=("${apt_demo[@]}" $python_packages)
  case $1 in
    test) wanted+=("${apt_test[@]}") ;;
    bench) wanted+=("${apt_test[@]}" "${apt_bench[@]}") ;;
    lines) wanted+=("${apt_test[@]}" "${apt_lines[@]}") ;;
    neon) wanted=("${apt_demo[@]}" "${apt_neon[@]}") ;;
    fuzz) wanted=("${apt_demo[@]}" "${apt_test[@]}" "${apt_fuzz[@]}") ;;
    page) wanted=("${apt_demo[@]}" "${apt_test[@]}" "${apt_page[@]}") ;;
  esac
  if ! command -v dpkg-query >/dev/null; then
    say "This is not Debian or a relative of it. Needed, by Debian's names: ${wanted[*]}"
    return 0
  fi
  mapfile -t missing < <(missing_apt "${wanted[@]}")
  if [ "${#missing[@]}" -eq 0 ]; then
    say "all ${#wanted[@]} packages are there"
    return 0
  fi
  say "missing: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die "neither root nor sudo here. Ask someone who is root to run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  # A fresh image has no package lists; a fresh list is fetched only where a name is unknown or its file is gone.
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}")
  if apt-cache show "${missing[@]}" >/dev/null 2>&1 && "${install[@]}"; then return 0; fi
  "${as_root[@]}" apt-get update || return 1
  "${install[@]}"
}

make_venv() {
  local python
  python=$(find_python) || return 1
  [ -n "$python" ] || die "no Python 3.11, 3.12 or 3.13 found; name one with PYTHON=/path/to/python3"
  if [ -x "$venv/bin/python" ] && supported "$venv/bin/python"; then
    local describe='import sys; print(sys.version_info[:3], sys.base_prefix)'
    if [ -z "${PYTHON:-}" ] || [ "$("$python" -c "$describe")" = "$("$venv/bin/python" -c "$describe")" ]; then
      say "$("$venv/bin/python" --version) in .venv"
      return 0
    fi
  fi
  rm -rf "$venv" "$stamps"
  mkdir -p "$stamps"
  "$python" -m venv "$venv" && say "$("$venv/bin/python" --version) in .venv, made by $python"
}

install_pip() {
  # The marker lies inside .venv as well: a venv that was made again holds nothing, whatever build/ says.
  local key
  key=$(digest requirements)
  if [ -f "$venv/finitude-$1" ] && fresh "pip-$1" "$key"; then
    say "the packages of requirements/$1.txt are there"
    return 0
  fi
  "$venv/bin/python" -m pip install --disable-pip-version-check -r "requirements/$1.txt" || return 1
  touch "$venv/finitude-$1" "$venv/finitude-demo"  # test.txt contains demo.txt
  stamp "pip-$1" "$key"
  stamp pip-demo "$key"
}

setup() {
  local pip=$1
  case $pip in bench | lines | page) pip=test ;; esac
  step "apt packages" install_apt "$1" && step "Python environment" make_venv && step "pip packages" install_pip "$pip"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case "${1:-test}" in
    demo | test | bench | lines | page) setup "${1:-test}" ;;
    *) die "usage: setup.sh demo|test|bench|lines|page" ;;
  esac
fi
