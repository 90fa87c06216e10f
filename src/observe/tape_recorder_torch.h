// Records the tape of a step: while on, every operator below autograd with its arguments, as raw events in an
// arena. Nothing is judged here: capture::link() does that afterwards.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/raw_tape.h"
#include "observe/call_digest_torch.h"
#include "observe/tape_parts_torch.h"
#include "observe/tape_places_torch.h"
#include "observe/tape_values_torch.h"

namespace finitude::observe {

struct TapeOp;

// One per process, leaked on purpose: callbacks may outlive main. Costs nothing while off (no callback is
// installed). Callbacks never throw and call no operator. Storages are held weakly, so that memory is freed
// as always; what was there before the step and is read by it is held until take() or clear(), or copied
// before it is overwritten.
class TapeRecorder {
 public:
  static TapeRecorder& get();

  // Begins a new tape. start(), stop(), take() and clear() belong to one thread.
  // max_bytes: of inputs that may be copied; a step that reads more leaves a tape with a gap.
  // places: where the calls come from is reported by it; null: it is not reported.
  // every_step: it continues until a step is bad, and restart() begins each; what a step reads is not held where it is
  // more than max_bytes. Lines are not reported then: the trace taken along has them.
  void start(std::size_t max_bytes, const Places* places, bool every_step = false);
  void restart();                        // a new tape, which begins here
  void pause(bool on) { paused_ = on; }  // nothing is recorded from here on until it is set back
  void stop();
  void seal();  // stops, and copies what was read: the program continues and may write it
  void clear();
  bool on() const { return on_; }
  bool has_any() const { return !raw_.events.empty(); }  // while off

  // What the memory of a tensor is; of storages that are not on the tape nothing is kept.
  void name_storage(const c10::TensorImpl& tensor, const std::string& kind, const std::string& name);
  // What a replay has to come to. False: the tape does not touch this tensor. with_values: false where what it came to
  // is not asked for.
  bool add_outcome(const std::string& kind, const std::string& name, const at::Tensor& tensor,
                   bool with_values = true) noexcept;
  // Where the default generator of the CPU is now goes onto the tape, whether it has moved or not: the number of
  // that entry among those of generators.
  std::size_t note_random();
  // What each call reads and makes is read for a digest, until it is set back. Every byte is read at least twice.
  void keep_digests(bool on) { keeps_digests_ = on; }
  std::vector<CallDigest> take_digests();      // in the order in which the calls began; before take()
  bool writes(const c10::TensorImpl& tensor);  // did a recorded call write this tensor's memory?
  // Does the step read this tensor's memory, as it was before the step or as an operator on the tape made it?
  bool reads(const c10::TensorImpl& tensor);
  capture::RawTape take();

  // What was there before the step, and is not overwritten as a whole.
  struct Input {
    capture::StorageId number = 0;  // RawTape::storages
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    bool written = false;  // by the step
  };
  // The tape without the content of inputs that `later` says true of, and of those that are larger than kMaxKept bytes.
  static constexpr std::size_t kMaxKept = std::size_t{1} << 20;
  capture::RawTape take_template(c10::function_ref<bool(const c10::StorageImpl&)> later, std::vector<Input>* inputs);
  // The number that a storage has on the tape at hand; kNoStorage: it is not on it.
  capture::StorageId number_of(const c10::StorageImpl* storage);

 private:
  static constexpr std::size_t kLarge = 65536;  // bytes of an input of which the parts are reported that are read
  static constexpr std::size_t kNoDigest = static_cast<std::size_t>(-1);
  struct Op;
  struct Known {
    enum State : std::uint8_t {
      kSeen,   // nobody has read it yet
      kInput,  // read before any operator made it
      kMade,   // by an operator
      kFresh,  // allocated, and written by no operator
    };
    c10::StorageImpl* impl = nullptr;           // held weakly
    c10::intrusive_ptr<c10::StorageImpl> held;  // of an input
    State state = kSeen;
    bool copied = false;
    bool used = false;  // read after it was seen first
    bool written = false;
    bool on_device = false;
    bool of_backend = false;           // first seen inside a collective operation: a buffer of the backend's
    std::int64_t begin = 0, end = 0;   // of an input: what is read of it
    std::unique_ptr<ReadParts> parts;  // of a large one that is only read, as long as it is little
    std::uint64_t filled = 0;          // checksum of a kFresh one when it was read last
    std::uint64_t handed_out = 0;  // the same when its allocation came back: nobody wrote it since where they are equal
    record::OpId allocation = record::kNone;  // the op of the trace that handed a kFresh one out
  };
  struct Context;
  TapeRecorder() = default;
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);
  std::unique_ptr<at::ObserverContext> start_op(const at::RecordFunction& fn, TapePlaces::Where where);
  void end_op(const at::RecordFunction& fn, Context* context);

  const Op& op_of(const at::RecordFunction& fn);
  capture::StorageId see(c10::StorageImpl& storage);
  std::int64_t generator_number(const at::Generator& generator);
  void random_before(std::int64_t generator);
  void random_after(std::int64_t generator);
  bool moved(std::int64_t generator);
  // The default generator of the device that a call computes on; -1: there is none that can be reported.
  std::int64_t default_generator(c10::ArrayRef<TapeUse> uses, c10::ArrayRef<c10::IValue> inputs);
  std::uint8_t device_number(const c10::Device& device);
  void keep_drawn(c10::ArrayRef<TapeUse> results, c10::ArrayRef<TapeUse> arguments, std::uint64_t writes);
  // rows: all that is read of it, in bytes of the storage; null: from its beginning to its end.
  void read(const TapeUse& use, const std::vector<capture::ByteRange>* rows = nullptr);
  void write(const TapeUse& use, bool overwrites_all);
  bool reads_large_input(c10::ArrayRef<TapeUse> uses) const;
  void fill(capture::StorageId id);
  void lose(capture::StorageId id);
  void handed_out(capture::StorageId id, record::OpId by);
  std::size_t begin_digest(const TapeOp& op, record::OpId traced, c10::ArrayRef<c10::IValue> inputs,
                           c10::SmallVectorImpl<const c10::TensorImpl*>* written);
  void end_digest(std::size_t number, c10::ArrayRef<c10::IValue> results,
                  const c10::SmallVectorImpl<const c10::TensorImpl*>& written);
  bool is_of_backend(const TapeOp& op, c10::ArrayRef<c10::IValue> inputs) const;
  void exchange(const at::RecordFunction& fn, const TapeOp& op, bool is_inside);
  void note_exchange(const at::RecordFunction& fn, const TapeOp& op, TapePlaces::Where where);
  void refuse(const Op& op);
  std::unique_ptr<at::ObserverContext> start_refused(const Op& op, c10::ArrayRef<c10::IValue> inputs);
  void end_refused(const at::RecordFunction& fn, Context* context);
  void copy_input(capture::StorageId id, std::int64_t begin, std::int64_t end);
  bool hold(capture::StorageId id);
  bool within_limit(std::size_t more_bytes);
  void begin_tape();
  void let_go_of_inputs();
  void forget(std::vector<Known>& known);
  void leave_out(capture::StorageId id, c10::function_ref<bool(const c10::StorageImpl&)> later,
                 std::vector<Input>* inputs);
  void finish_inputs();
  capture::RawTape taken();

  std::atomic<bool> on_ = false, full_ = false, keeps_digests_ = false, paused_ = false, lets_go_ = false;
  std::atomic<std::uint64_t> generation_ = 0;
  TapePlaces places_;
  at::CallbackHandle handle_ = 0;

  std::mutex mutex_;  // guards what follows
  std::unordered_map<const char*, std::unique_ptr<Op>> ops_;
  std::unordered_map<const c10::StorageImpl*, capture::StorageId> ids_;
  std::vector<Known> known_;
  std::vector<at::Generator> generators_;
  std::vector<std::string> random_states_;  // as the last operator that drew left them
  capture::RawTape raw_;
  std::uint64_t events_ = 0;
  std::size_t randoms_ = 0;  // events of generators
  std::size_t bytes_ = 0, max_bytes_ = 0, held_bytes_ = 0;
  bool too_large_ = false, every_step_ = false;
  std::size_t drawn_bytes_ = 0, draws_left_out_ = 0;  // of what calls on a device drew
  std::map<std::string, std::size_t> exchanges_;      // calls of each collective operation
  std::vector<CallDigest> digests_;
  std::string autocast_;  // the dtype that some call was to be cast to
};

}  // namespace finitude::observe
