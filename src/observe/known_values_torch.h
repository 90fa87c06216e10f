// Bad tensors that an alarm has reported, to know again until somebody writes them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace finitude::observe {

// Is it the result of an operation that autograd records? Does not compute.
bool has_graph(const at::Tensor& tensor);

// Holds no tensor alive. One thread at a time.
class KnownValues {
 public:
  void note(const at::Tensor& tensor);
  // Is it one of these, and as it was then?
  bool contains(const at::Tensor& tensor) const;
  // Those that are alive and as they were then, in the order in which they were noted.
  std::vector<at::Tensor> unwritten() const;
  void forget() { values_.clear(); }

 private:
  // One that has been written since, or has the address of such a one, is another matter.
  struct AsItWas {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::uint32_t version;

    explicit AsItWas(const at::Tensor& t);
    at::Tensor now() const;  // undefined: gone, or written
  };

  std::vector<AsItWas> values_;
};

}  // namespace finitude::observe
