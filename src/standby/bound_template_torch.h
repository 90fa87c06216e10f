// A template tape that is used for the step that is open.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/tape.h"
#include "record/trace.h"

namespace finitude::bindings {

// Its tape, which is the one of recorded_tape() meanwhile, and its trace, by the memory that there is now. GIL held.
class TemplateInHand {
 public:
  record::Trace trace;
  bool lacks_sink = false;  // a sink was given that the tape does not come to

  TemplateInHand(capture::Tape* tape, record::Trace trace_of_step) : trace(std::move(trace_of_step)), tape_(tape) {}
  capture::Tape* tape() const { return tape_; }

  void know(const c10::StorageImpl* memory, capture::StorageId id) { memory_.try_emplace(memory, id); }
  void know_outcome(std::size_t index, const at::Tensor& tensor);

  // As the functions of the recorder and of the tracer of the same names do.
  bool reads(const at::Tensor& tensor) const;
  void name_on_tape(const at::Tensor& tensor, const std::string& kind, const std::string& name);
  void name_in_trace(const at::Tensor& tensor, record::Origin origin, const std::string& name);
  bool add_outcome(const std::string& kind, const std::string& name, const at::Tensor& tensor);
  void add_sink(const std::string& kind, const std::string& name, const at::Tensor& tensor);

 private:
  capture::Storage* storage_of(const at::Tensor& tensor) const;

  capture::Tape* tape_;
  std::unordered_map<const c10::StorageImpl*, capture::StorageId> memory_;
  std::vector<std::pair<std::size_t, at::Tensor>> outcomes_;
};

// Null: none is.
TemplateInHand* template_in_hand() noexcept;
void take_template_in_hand(std::unique_ptr<TemplateInHand> hand);
void put_template_down() noexcept;

}  // namespace finitude::bindings
