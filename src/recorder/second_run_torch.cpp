#include "recorder/second_run_torch.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "capture/link.h"
#include "capture/step_statistics.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "observe/unseen_write_torch.h"
#include "recorder/places_torch.h"
#include "recorder/player_posix.h"
#include "replay/keep_tape_torch.h"
#include "replay/lab_torch.h"
#include "replay/step_lab_torch.h"
#include "show/analysis.h"
#include "show/expressions.h"
#include "show/findings.h"

namespace finitude::recorder {
namespace {

using observe::TapeRecorder;
using observe::Tracer;

// A replay to check the capsule takes no longer than a step of such a size.
constexpr std::uint64_t kReplayBelow = 16 << 20;

std::atomic<bool> under_way = false;  // the tracer and the recorder of the tape are one per process

bool is_bad(const at::Tensor& tensor) {
  observe::TensorView v;
  return tensor.defined() && observe::view_of(*tensor.unsafeGetTensorImpl(), &v) && observe::quick(v).bad;
}

// A relative path is that of the compiler, see places_torch.cpp.
bool is_path(const std::string& file) { return file.starts_with('/'); }

std::string line_of(const std::string& file, std::uint32_t number) {
  return is_path(file) ? show::source_line(file, static_cast<int>(number)) : std::string();
}

void drop_doubtful_sources(nlohmann::json& value) {
  if (value.is_object() && value.contains("source") && !is_path(value.value("file", ""))) value["source"] = "";
  if (!value.is_structured()) return;
  for (auto& item : value) drop_doubtful_sources(item);
}

}  // namespace

SecondRun::SecondRun(Watched& watched, const Generators& generators, Buffers& buffers, const SearchState* search)
    : watched_(watched), generators_(generators), buffers_(buffers), search_(search) {}

SecondRun::~SecondRun() { put_back(); }

bool SecondRun::begin(const Options& options, const at::Tensor& first_loss,
                      const std::vector<std::unique_ptr<Watched>>& others) {
  if (under_way.exchange(true)) return false;
  begun_ = true;
  // Set aside what the first run left.
  generators_.take(&generators_after_);
  buffers_after_ = buffers_.at_start();
  buffers_after_.take();
  if (search_ != nullptr) search_after_ = std::make_unique<SearchState>(watched_.optimizer());
  to_put_back_ = true;
  // Back to where it began.
  if (search_ != nullptr) search_->put_back();
  watched_.for_each([&](std::size_t i, const at::Tensor& p) { gradients_.set_aside(p, watched_.had_gradient(i)); });
  for (const auto& other : others)
    other->for_each([&](std::size_t, const at::Tensor& p) { gradients_.set_aside(p, true); });
  gradients_.set_aside_below(first_loss);
  generators_.put_back(watched_.generators_at_start());
  buffers_.put_back();
  begin_places(options.debug_lines);
  Tracer::get().clear();
  observe::unseen_writes().on = true;
  Tracer::get().start(&places());
  taped_ = options.tape_bytes != 0;
  if (taped_) TapeRecorder::get().start(options.tape_bytes, &places());
  return true;
}

void SecondRun::add_sink(const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  if (!is_bad(tensor)) return;
  failed_again_ = true;
  Tracer::get().add_sink(kind, name, *tensor.unsafeGetTensorImpl(), 0);
}

void SecondRun::begin_loss(const at::Tensor& tensor) {
  Tracer::get().pause(true);  // what is set aside is no part of the step
  TapeRecorder::get().pause(true);
  gradients_.set_aside_below(tensor);
  TapeRecorder::get().pause(false);
  Tracer::get().pause(false);
  add_loss(tensor);
}

void SecondRun::add_loss(const at::Tensor& tensor) {
  losses_.push_back(look_at_loss(tensor));
  if (losses_.back().tensor == nullptr) return;
  if (taped_) TapeRecorder::get().add_outcome("loss", "loss", tensor);
  add_sink("loss", "loss", tensor);
}

void SecondRun::end(const at::Tensor& returned) {
  Tracer& tracer = Tracer::get();
  TapeRecorder& tape = TapeRecorder::get();
  tracer.stop();
  tape.stop();
  if (returned.defined() && (losses_.empty() || losses_.back().tensor != returned.unsafeGetTensorImpl()))
    add_loss(returned);
  bits_ = fingerprint(losses_, watched_, generators_);
  watched_.for_each([&](std::size_t index, const at::Tensor& p) {
    const std::string name = watched_.name_of(index, p);
    tracer.name_storage(*p.unsafeGetTensorImpl(), record::Origin::kParameter, name);
    if (taped_) tape.name_storage(*p.unsafeGetTensorImpl(), "parameter", name);
    if (search_ != nullptr) {
      add_sink("parameter", name, p);
      if (taped_) tape.add_outcome("parameter", name, p.detach());
    }
    const at::Tensor* gradient = gradient_of(p);
    if (gradient == nullptr) return;
    add_sink("gradient", name, *gradient);
    if (!taped_ || gradient->is_sparse()) return;
    tape.add_outcome("gradient", name, *gradient);
    tape.name_storage(*gradient->unsafeGetTensorImpl(), "gradient", name);
  });
  // A buffer may hold an intended infinity; what counts is a NaN that was not there.
  for (const Buffer& buffer : buffers_.live()) {
    tracer.name_storage(*buffer.tensor.unsafeGetTensorImpl(), record::Origin::kBuffer, buffer.name);
    if (!buffer.had_nan && holds_nan(buffer.tensor)) add_sink("buffer", buffer.name, buffer.tensor);
    if (!taped_) continue;
    tape.name_storage(*buffer.tensor.unsafeGetTensorImpl(), "buffer", buffer.name);
    tape.add_outcome("buffer", buffer.name, buffer.tensor);
  }
}

const capture::Tape& SecondRun::tape() {
  if (!tape_) tape_ = capture::link(TapeRecorder::get().take());
  return *tape_;
}

nlohmann::json SecondRun::analyse(const explain::StepHistory& history, double seconds) {
  Tracer& tracer = Tracer::get();
  const record::Trace trace = tracer.take_trace();
  replay::TorchLab lab(tracer, false);
  std::optional<replay::TorchStepLab> step;
  show::AnalysisOptions options;
  options.seconds = taped_ ? seconds : 0;
  options.step = [&]() -> replay::StepLab* { return &step.emplace(tape(), trace); };
  nlohmann::json found = show::analysis(trace, history, &lab, options);
  drop_doubtful_sources(found);
  if (taped_) statistics_ = capture::write_statistics(trace, false);
  if (found["fix"].is_object()) found["fix"].erase("edit");  // the words of a change to a Python program
  for (const char* name : {"is_overflow", "came_from", "clamps_divisor"}) found.erase(name);  // no part of a report
  tracer.clear();
  return found;
}

capture::Tape SecondRun::taken_tape() {
  tape();
  tape_->statistics = std::move(statistics_);
  return *std::exchange(tape_, std::nullopt);
}

std::string SecondRun::keep(const std::string& folder, nlohmann::json about, const RecorderOptions& options) {
  try {
    return replay::keep_tape(taken_tape(), folder, std::move(about), {options.capsule_max_bytes, options.redact},
                             kReplayBelow, line_of)
        .why_not;
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::string SecondRun::keep_beside(const std::string& folder, nlohmann::json about, const RecorderOptions& options) {
  try {
    return replay::keep_tape_beside(taken_tape(), {folder, player(), options.runs, options.capsules, true, {}},
                                    std::move(about), {options.capsule_max_bytes, options.redact}, kReplayBelow,
                                    line_of, {});
  } catch (const std::exception& e) {
    return e.what();
  }
}

void SecondRun::put_back() noexcept {
  if (!begun_) return;
  begun_ = false;
  try {
    Tracer::get().stop();
    Tracer::get().clear();
    TapeRecorder::get().stop();
    TapeRecorder::get().clear();
    end_places();
    if (to_put_back_) {
      gradients_.put_back();
      generators_.put_back(generators_after_);
      buffers_after_.restore();
      if (search_after_) search_after_->put_back();
    }
  } catch (...) {
  }
  under_way = false;
}

}  // namespace finitude::recorder
