// Runs a bad step a second time, under a trace and onto a tape, and puts back everything that this changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "capture/tape.h"
#include "finitude/recorder.h"
#include "recorder/buffers_torch.h"
#include "recorder/leaf_gradients_torch.h"
#include "recorder/losses_torch.h"
#include "recorder/search_torch.h"

namespace finitude::recorder {

class SecondRun {
 public:
  // search: what the optimizer was before its step, where it steps within the run.
  SecondRun(Watched& watched, const Generators& generators, Buffers& buffers, const SearchState* search);
  ~SecondRun();  // as put_back()

  struct Options {
    bool debug_lines = true;
    std::size_t tape_bytes = 0;  // 0: no tape
  };
  // True: it has begun; what runs now is recorded. False: another second run of this process is under way.
  // first_loss: what the closure returned in the first run. others: optimizers whose gradients it may have written as
  // well.
  bool begin(const Options& options, const at::Tensor& first_loss, const std::vector<std::unique_ptr<Watched>>& others);
  // A loss that the closure reports, as its backward begins.
  void begin_loss(const at::Tensor& tensor);
  // It is over. `returned`: what the closure did; undefined where it threw.
  void end(const at::Tensor& returned);

  const Fingerprint& bits() const { return bits_; }
  const std::vector<Loss>& losses() const { return losses_; }
  bool failed_again() const { return failed_again_; }
  // {births, cause, fix, path} of what was traced. seconds: the most that trying the fix on what was taped may take.
  nlohmann::json analyse(const explain::StepHistory& history, double seconds);
  // What was taped, as a capsule. Why not, or empty.
  std::string keep(const std::string& folder, nlohmann::json about, const RecorderOptions& options);
  // The same by capture::CapsuleQueue, which says what came of it: replay::keep_tape_beside.
  std::string keep_beside(const std::string& folder, nlohmann::json about, const RecorderOptions& options);

  void put_back() noexcept;

 private:
  const capture::Tape& tape();
  capture::Tape taken_tape();
  void add_loss(const at::Tensor& tensor);
  void add_sink(const std::string& kind, const std::string& name, const at::Tensor& tensor);

  Watched& watched_;
  const Generators& generators_;
  Buffers& buffers_;
  const SearchState* const search_;
  std::unique_ptr<SearchState> search_after_;
  std::string statistics_;             // of the trace, as capture::write_statistics gives them
  std::optional<capture::Tape> tape_;  // of the recording, once it was asked for
  LeafGradients gradients_;            // of the first run
  std::vector<std::string> generators_after_;
  observe::BufferSnapshot buffers_after_;
  std::vector<Loss> losses_;
  Fingerprint bits_;
  bool begun_ = false, taped_ = false, failed_again_ = false, to_put_back_ = false;
};

}  // namespace finitude::recorder
