// Differences between the versions of torch that can be built against, which have no version macro of their own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <type_traits>

namespace finitude::bindings {

// What differs is found by the types of torch's own functions, so that a build needs no configuration.
// Nodes of the graph are held by shared_ptr up to some version, by intrusive_ptr from it on.
using NodeRef = std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// The weak reference that belongs to NodeRef. A graph is freed when its last tensor dies; to hold a node strongly would
// keep all activations below it alive.
template <typename Ref>
struct WeakOf;
template <typename T>
struct WeakOf<std::shared_ptr<T>> {
  using type = std::weak_ptr<T>;
};
template <typename T>
struct WeakOf<c10::intrusive_ptr<T>> {
  using type = c10::weak_intrusive_ptr<T>;
};
using WeakNodeRef = WeakOf<NodeRef>::type;

}  // namespace finitude::bindings
