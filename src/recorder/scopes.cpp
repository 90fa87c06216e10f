#include "recorder/scopes.h"

#include <algorithm>
#include <cstddef>

namespace finitude {
namespace {

constexpr std::size_t kMostScopes = 64;
thread_local const Scope::Site* scopes[kMostScopes];
thread_local std::size_t depth = 0;

}  // namespace

Scope::Scope(const Site* site) noexcept {
  if (depth < kMostScopes) scopes[depth] = site;
  ++depth;
}

Scope::~Scope() { --depth; }

std::span<const Scope::Site* const> recorder::open_scopes() noexcept { return {scopes, std::min(depth, kMostScopes)}; }

}  // namespace finitude
