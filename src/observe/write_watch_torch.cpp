#include "observe/write_watch_torch.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "observe/op_info_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/traced_torch.h"

namespace finitude::observe {
namespace {

struct Stretch {
  const char *begin, *end;
};

// Replaced as a whole while no callback is installed.
std::vector<Stretch>& stretches() {
  static auto* list = new std::vector<Stretch>();
  return *list;
}

std::atomic<bool> seen = false;
at::CallbackHandle handle = 0;  // with the GIL held

bool stretch_of(const at::Tensor& tensor, Stretch* stretch) noexcept {
  TensorView v;
  if (!tensor.defined() || !view_of(*tensor.unsafeGetTensorImpl(), &v)) return false;
  const char* base = static_cast<const char*>(v.storage->data_ptr().get());
  *stretch = {base + v.begin, base + v.end};
  return true;
}

void look(const at::Tensor& written) noexcept {
  Stretch at;
  if (!stretch_of(written, &at)) return;
  for (const Stretch& mine : stretches()) {
    if (at.begin < mine.end && mine.begin < at.end) seen.store(true, std::memory_order_relaxed);
  }
}

void look(const c10::IValue& value) noexcept {
  if (value.isTensor()) look(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& one : value.toTensorVector()) look(one);
}

std::unique_ptr<at::ObserverContext> on_op(const at::RecordFunction& fn) {
  try {
    if (is_traced()) return nullptr;
    const OpInfo& info = op_info(fn);
    const auto inputs = fn.inputs();
    for (std::size_t i = 0; info.writes != 0 && i < inputs.size() && i < 64; ++i) {
      if (((info.writes >> i) & 1) != 0) look(inputs[i]);
    }
  } catch (...) {  // the operator that is under way is the program's
  }
  return nullptr;
}

}  // namespace

void watch_writes(const std::vector<at::Tensor>& tensors) {
  writes_seen();
  stretches().clear();
  for (const at::Tensor& tensor : tensors) {
    Stretch stretch;
    if (stretch_of(tensor, &stretch)) stretches().push_back(stretch);
  }
  seen = false;
  handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&on_op).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

bool writes_seen() {
  if (handle == 0) return false;
  at::removeCallback(handle);
  handle = 0;
  return seen.exchange(false);
}

}  // namespace finitude::observe
