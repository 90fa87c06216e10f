// What an optimizer wrote into parameters and its state: looked at, and with a memory budget undone.
//
// Looked at right after the step where its arithmetic may overflow or a copy to go back to exists; else one slice of
// all bytes per step, so that everything is seen within kRotation steps at 1/kRotation of the cost.
#pragma once

#include "gate/state_torch.h"

namespace finitude::bindings {

inline constexpr std::uint64_t kRotation = 64;

// Everything it owns, now. GIL held; CPU tensors only, others are taken for healthy.
bool wrote_non_finite(OptimizerEntry& entry);

// One slice, in passing: `visit` is called for every parameter in order, `end` after the last. No allocation.
class SliceScan {
 public:
  explicit SliceScan(OptimizerEntry& entry);
  void visit(PyObject* parameter);
  // True if the slice holds a value that is not finite.
  bool end();

 private:
  void look(ReadWeight& weight, const at::Tensor& parameter, std::int64_t first, std::int64_t last);
  void begin(ReadWeight& weight, PyObject* parameter);
  void compare(const at::Tensor& parameter);
  OptimizerEntry& entry_;
  Object state_;
  std::uint64_t begin_, end_, seen_ = 0;
  std::uint32_t index_ = 0;
  std::size_t compared_ = 0;  // samples of the step before, whose parameters were visited
  bool bad_ = false;
};

// Parameters, state, groups and attributes of an optimizer, and of those that it holds, as they were before a step.
// What its dicts and lists hold is remembered, and the bytes of the tensors in them. One copy per optimizer, made again
// before each step: costs one read and one write of those bytes.
class UndoCopy {
 public:
  // False where it would not fit into `budget` bytes (`needed()` returns how much), or a tensor is not on the CPU.
  // `lasting`: for longer than one step; of the optimizer's attributes only plain values are remembered then, as others
  // may hold the optimizer itself, which would never die.
  bool take(PyObject* optimizer, std::size_t budget, bool lasting = false);
  bool is_taken() const noexcept { return taken_; }
  // Is everything still as it was taken? False if nothing was.
  bool is_current() const;
  // Back to what was taken; entries that the step added to the state are gone. False if nothing was taken.
  bool restore();
  // The same, and the copy stays.
  bool put_back();
  // Do the tensors that were there hold the bytes that were copied?
  bool has_same_values() const;
  void forget(bool memory_too = false);
  std::size_t needed() const noexcept { return needed_; }
  std::size_t size_bytes() const noexcept { return taken_ ? needed_ : 0; }

 private:
  struct Item {
    at::Tensor tensor;
    std::size_t offset;
  };
  bool add(const at::Tensor& tensor);
  bool add_value(PyObject* value, int depth);
  bool add_container(PyObject* container);
  bool add_optimizer(PyObject* optimizer);
  bool add_plain_attributes(PyObject* attributes);
  std::vector<Item> items_;
  std::vector<char> bytes_;
  std::vector<std::pair<Object, Object>> containers_;  // a live dict or list, and a shallow copy of it
  std::vector<std::pair<Object, Object>> attributes_;  // a live dict, and the plain values in it
  std::vector<PyObject*> optimizers_;                  // those that were added; borrowed
  std::size_t needed_ = 0;
  bool taken_ = false, lasting_ = false;
};

// Sets the budget of the whole process, in bytes. 0: no copies.
void set_undo_budget(std::size_t size_bytes) noexcept;
// Before a step: true if it can be undone.
bool prepare_undo(OptimizerEntry& entry);
bool undo_step(OptimizerEntry& entry);
// A copy for this one step whatever the budget, until `release_undo`. False where that is not possible.
bool hold_undo(OptimizerEntry& entry);
void release_undo(OptimizerEntry& entry);
// Bytes wanted by optimizers that did not fit, 0 if all did.
std::size_t undo_shortfall() noexcept;

}  // namespace finitude::bindings
