// The template tape: one healthy step in N is recorded, and the tape stays without the values that a later step has
// again. Where that goes bad, the tape is played on what it began with: its parameters and buffers, its batches by
// position, its generators. GIL held for all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "capture/raw_tape.h"
#include "gate/state_torch.h"
#include "observe/tape_recorder_torch.h"
#include "record/trace.h"

namespace finitude::bindings {

inline constexpr std::size_t kStart = static_cast<std::size_t>(-1);

// A recording that may become a template begins, or begins again.
void template_begins();
// A loss was handed over: by which operations it was computed is kept, where a template may be asked for it. Where all
// is NaN, its bits and those of the gradients prove little.
void template_loss_given(std::uint64_t serial, const at::Tensor& root, bool is_bad);
// A loader has given a batch for training, and the generators are as they were right after.
void template_batch_given();
// The step of `entry` is about to be applied: what was recorded is its template from here on, in place of the one
// before, and the recording ends. since: as LossNote::serial, of the last loss before the recording.
void keep_template(const OptimizerEntry& entry, std::uint64_t since);
void drop_templates() noexcept;

// Memory that a tensor of a batch lay in.
struct BatchPiece {
  capture::StorageId number = 0;      // RawTape::storages
  std::size_t batch = 0, tensor = 0;  // positions: of the batch in the window, of the tensor in the batch
  std::int64_t begin = 0, end = 0;    // bytes of the storage
  c10::ScalarType dtype{};
  std::vector<std::int64_t> sizes, strides;
};

// Where a generator stood.
struct Stand {
  std::size_t batch = kStart;  // right after that batch was given; kStart: where the window began
  const void* of = nullptr;    // one of the program's own, by its address; null: the default one
  std::string state;
};

// A recorded step.
struct Template {
  std::uint64_t step = 0;
  std::string why_not;  // not empty: that step is no template, and nothing else is here
  capture::RawTape raw;
  record::Trace trace;
  std::vector<observe::TapeRecorder::Input> inputs;
  std::vector<BatchPiece> pieces;
  std::map<std::size_t, std::size_t> noted;  // entries of generators, by number: the batch after which they stood so
  std::vector<Stand> stands;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> buffers;  // by the number that outcomes name
  std::size_t batches = 0;
  std::vector<std::uint64_t> losses;  // the graph of each
};

// Of the optimizer with that ordinal; null: there is none.
const Template* template_of(std::uint32_t ordinal) noexcept;

// Of a batch, in the order in which their positions are given.
std::vector<at::Tensor> tensors_in(PyObject* batch);
// The losses of the window that is open, after that serial; false where one is not that of a plain step.
bool losses_since(std::uint64_t serial, std::vector<const LossNote*>* losses);
// By which operations that loss was computed, known from their graph; 0: not known.
std::uint64_t graph_of_loss(std::uint64_t serial) noexcept;
// Puts the template of this optimizer in the place of the step that it is about to take: "" or why not. Until the
// findings are there, what is named, and what the step came to, is recorded in that tape.
std::string bind_template(const OptimizerEntry& entry);

}  // namespace finitude::bindings
