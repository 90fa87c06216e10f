#include "observe/held_values_torch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "observe/op_info_torch.h"
#include "observe/op_tensors_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/traced_torch.h"

namespace finitude::observe {
namespace {

struct Held {
  at::Tensor alias;  // counts its own writes
  at::Tensor copy;
  const char *begin, *end;
  bool contiguous;

  bool is_written() const {
    return !contiguous || std::memcmp(begin, copy.const_data_ptr(), static_cast<std::size_t>(end - begin)) != 0;
  }
};

struct Count {
  at::Tensor tensor;
  std::uint32_t version;
};

// Replaced as a whole while no callback is installed.
std::vector<Held>& held() {
  static auto* list = new std::vector<Held>();
  return *list;
}

std::vector<Count>& counts() {
  static auto* list = new std::vector<Count>();
  return *list;
}

std::mutex writing;                   // one thread puts back, the others wait to read
at::CallbackHandle held_handle = 0;   // with the GIL held
thread_local bool puts_back = false;  // the operator that puts back

void put_value_back(const Held& one) {
  const at::NoGradGuard no_grad;
  one.alias.copy_(one.copy);
}

void before_read(const at::Tensor& tensor) {
  TensorView v;
  if (!tensor.defined() || !place_of(*tensor.unsafeGetTensorImpl(), &v)) return;
  const char* base = static_cast<const char*>(v.storage->data());
  const char *begin = base + v.begin, *end = base + v.end;
  for (const Held& one : held()) {
    if (begin >= one.end || one.begin >= end) continue;
    const std::lock_guard<std::mutex> lock(writing);
    if (one.is_written()) put_value_back(one);
  }
}

std::unique_ptr<at::ObserverContext> on_reading_op(const at::RecordFunction& fn) {
  if (puts_back) return nullptr;
  puts_back = true;
  try {
    if (is_traced()) {
      puts_back = false;
      return nullptr;
    }
    const OpInfo& info = op_info(fn);
    const auto inputs = fn.inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i < 64 && ((info.overwrites >> i) & 1) != 0) continue;
      for_each_tensor(inputs[i], [](const at::Tensor& t) { before_read(t); });
    }
  } catch (...) {  // the operator that is under way is the program's; the bits say
  }
  puts_back = false;
  return nullptr;
}

void remember_count(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference())
    counts().push_back({tensor, static_cast<std::uint32_t>(tensor._version())});
}

}  // namespace

void hold_values(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& counted) {
  release_values();
  for (const at::Tensor& tensor : tensors) {
    TensorView v;
    if (!tensor.defined() || !view_of(*tensor.unsafeGetTensorImpl(), &v)) continue;
    const char* base = static_cast<const char*>(v.storage->data());
    at::Tensor alias = tensor.variable_data();
    at::Tensor copy = alias.clone(at::MemoryFormat::Contiguous);
    held().push_back({std::move(alias), std::move(copy), base + v.begin, base + v.end, tensor.is_contiguous()});
    remember_count(tensor);
  }
  for (const at::Tensor& tensor : counted) remember_count(tensor);
  held_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_reading_op).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void release_values() {
  if (held_handle == 0) return;
  at::removeCallback(std::exchange(held_handle, 0));
  for (const Held& one : held()) {
    if (one.is_written()) put_value_back(one);
  }
  for (const Count& count : counts()) {
    c10::VariableVersion version = count.tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
    version.set_version(count.version);
  }
  held().clear();
  counts().clear();
}

}  // namespace finitude::observe
