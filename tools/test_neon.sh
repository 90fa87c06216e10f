#!/usr/bin/env bash
# The scan kernels for aarch64: cross-compiled with Debian's g++ and run under qemu. Highway, GoogleTest and rapidcheck
# come as Debian's arm64 packages, unpacked below build/ and not installed; apt keeps its lists of them there too.
step_total=4
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
arm_root=$root/build/neon-root
arm_packages=(libhwy-dev libgtest-dev libgmock-dev librapidcheck-dev nlohmann-json3-dev)

# An apt of its own, for arm64 only: neither the system's lists nor its set of architectures change.
arm_apt() {
  apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$root/build/neon-apt/state" \
    -o Dir::State::status=/dev/null -o Dir::Cache="$root/build/neon-apt/cache" -o Debug::NoLocking=1 "$@"
}

fetch_packages() {
  local key="${arm_packages[*]}"
  if fresh neon "$key" && [ -d "$arm_root/usr/include/hwy" ]; then
    say "the arm64 packages are in build/neon-root"
    return 0
  fi
  rm -rf "$arm_root" build/neon-apt
  mkdir -p "$arm_root" build/neon-apt/state/lists/partial build/neon-apt/cache/archives/partial build/neon-apt/debs
  arm_apt -q update || say "some package lists could not be fetched"
  (cd build/neon-apt/debs && arm_apt download "${arm_packages[@]}") || return 1
  local deb
  for deb in build/neon-apt/debs/*.deb; do dpkg-deb -x "$deb" "$arm_root" || return 1; done
  stamp neon "$key"
}

build_tests() {
  cmake --preset neon --log-level=WARNING && cmake --build --preset neon
}

# Death tests start their own program again, which only the kernel's binfmt could hand to qemu; what they show, that
# FINITUDE_FORCE_ISA decides, is shown here from outside.
run_tests() {
  ctest --preset neon | sed -u '/Passed/d; /Start/d'
  [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
  local isa
  for isa in NEON scalar; do
    FINITUDE_FORCE_ISA=$isa qemu-aarch64 -L /usr/aarch64-linux-gnu build/neon/finitude_core_test \
      --gtest_brief=1 --gtest_filter='Isa.*' | grep -x "kernels in use: $isa" || return 1
  done
}

step "apt packages" install_apt neon && step "arm64 packages" fetch_packages && step "build for aarch64" build_tests &&
  step "scan tests on aarch64 (qemu)" run_tests
