// A template played on the step that is open.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "capture/link.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/window_torch.h"
#include "observe/settings_torch.h"
#include "observe/tensor_view_torch.h"
#include "replay/restored_generators_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/window_start_torch.h"
#include "standby/bound_template_torch.h"
#include "standby/open_tape_torch.h"
#include "standby/template_tape_torch.h"

namespace finitude::bindings {
namespace {

using capture::Entry;
using observe::TapeRecorder;

// Fills an input of the tape with its content at the start of the open step; false where that is not known. Parameters
// still have it, since no step was applied. What the step has overwritten (buffers) comes from the copy in `window`.
// Memory that is gone counts only if the template kept its bytes.
bool put_content(const OpenWindow& window, const TapeRecorder::Input& input, capture::StorageId id,
                 TemplateInHand* hand) {
  capture::Storage& storage = hand->tape()->storages[id];
  const auto begin = static_cast<std::int64_t>(storage.traced_begin),
             size = static_cast<std::int64_t>(storage.size_bytes);
  const bool is_kept = storage.bytes.size() == storage.size_bytes;
  const auto memory = input.memory.lock();
  if (!memory || memory->data_ptr().get() == nullptr) return is_kept;
  hand->know(memory.get(), id);
  if (input.written && is_kept) {
    window.buffers->put_into(*memory, begin, &storage.bytes);
    return true;  // a copy of before it was written: what is there now is of after it
  }
  if (begin + size > static_cast<std::int64_t>(memory->nbytes())) return is_kept;
  const char* from = static_cast<const char*>(memory->data_ptr().get()) + begin;
  storage.bytes.assign(from, static_cast<std::size_t>(size));
  window.buffers->put_into(*memory, begin, &storage.bytes);
  // Kernels choose vector paths by alignment, and so the order of sums: other bits would come out otherwise.
  storage.misaligned = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(from) & 63);
  return true;
}

// Batches by position: "" or why they are not of the form that the template knows.
std::string put_batches(const Template& t, const std::vector<const LoaderEvent*>& batches,
                        const std::unordered_map<std::uint32_t, capture::StorageId>& ids, capture::Tape* tape,
                        TemplateInHand* hand) {
  if (batches.size() != t.batches)
    return "it took " + std::to_string(t.batches) + " batches of its loader, this step " +
           std::to_string(batches.size());
  std::unordered_set<capture::StorageId> begun;
  for (const BatchPiece& piece : t.pieces) {
    const auto id = ids.find(piece.number);
    if (id == ids.end()) continue;
    capture::Storage& storage = tape->storages[id->second];
    if (storage.origin != capture::Storage::kInput) continue;
    // The loader's batch as the step found it is gone then.
    if (!is_unchanged(*batches[piece.batch])) return "this step wrote into its batch";
    const std::vector<at::Tensor> tensors = tensors_in(batches[piece.batch]->result.get());
    observe::TensorView v;
    if (piece.tensor >= tensors.size() || !observe::view_of(*tensors[piece.tensor].unsafeGetTensorImpl(), &v))
      return "the batch has other tensors";
    if (tensors[piece.tensor].scalar_type() != piece.dtype || v.sizes != c10::IntArrayRef(piece.sizes) ||
        v.strides != c10::IntArrayRef(piece.strides)) {
      return "the batch has another shape";
    }
    hand->know(v.storage, id->second);
    const auto first = static_cast<std::int64_t>(storage.traced_begin);
    // Several tensors of a batch may share one storage: it is cleared for the first of them only.
    if (begun.insert(id->second).second) {
      storage.bytes.assign(static_cast<std::size_t>(storage.size_bytes), '\0');
      storage.misaligned = static_cast<std::uint8_t>(
          (reinterpret_cast<std::uintptr_t>(v.data) + static_cast<std::uintptr_t>(first - piece.begin)) & 63);
    }
    const std::int64_t from = std::max(piece.begin, first),
                       to = std::min(piece.end, first + static_cast<std::int64_t>(storage.bytes.size()));
    if (from < to)
      std::copy(v.data + (from - piece.begin), v.data + (to - piece.begin), storage.bytes.begin() + (from - first));
  }
  return "";
}

// Sets the generators on the tape to the states that they had in this step at the same points: at its start, after the
// same batch, or where the step itself restored an earlier state. Entries that match none of these keep the recorded
// state. For the default generator, a replay first shows which of those restore an earlier one (find_restored).
void put_generators(const Template& t, const OpenWindow& window, const std::vector<const LoaderEvent*>& batches,
                    capture::Tape* tape) {
  std::vector<std::pair<std::size_t, std::string>> states;
  std::vector<std::size_t> unknown;
  std::size_t number = 0;
  for (std::size_t i = 0; i < tape->entries.size(); ++i) {
    const Entry& entry = tape->entries[i];
    if (entry.kind != Entry::kRandom) continue;
    const std::size_t n = number++;
    Stand stand;
    if (const auto noted = t.noted.find(n); noted != t.noted.end()) {
      stand.batch = noted->second;
    } else if (n != 0) {
      const auto found = std::find_if(t.stands.begin(), t.stands.end(), [&](const Stand& s) {
        return (s.of == nullptr) == (entry.number == 0) && s.state == entry.bytes;
      });
      if (found == t.stands.end()) {
        if (entry.number == 0) unknown.push_back(i);
        continue;
      }
      stand = *found;
    }
    const RngState& state = stand.batch == kStart ? *window.rng : *batches[stand.batch]->after;
    const auto own =
        std::find_if(state.own.begin(), state.own.end(), [&](const TorchRng& one) { return one.of == stand.of; });
    if (stand.of != nullptr && own == state.own.end()) continue;
    std::string bytes = tape_state(stand.of == nullptr ? state.torch_cpu : *own);
    if (!bytes.empty()) states.emplace_back(i, std::move(bytes));
  }
  // Before the new states are put in: which entries restore an earlier state shows only on the tape as it was recorded.
  std::vector<replay::Restored> restored;
  if (!unknown.empty()) restored = replay::find_restored(*tape, unknown);
  for (auto& [entry, bytes] : states) tape->entries[entry].bytes = std::move(bytes);
  if (!restored.empty()) replay::follow_restored(restored, tape);
}

// Puts the losses, gradients and buffers of the open step into the outcomes: "" or why they do not correspond.
std::string put_outcomes(const Template& t, const OptimizerEntry& entry, const std::vector<const LossNote*>& losses,
                         capture::Tape* tape, TemplateInHand* hand) {
  std::vector<const at::Tensor*> gradients;
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) { gradients.push_back(gradient_of(p)); });
  std::size_t loss = 0;
  for (std::size_t i = 0; i < tape->outcomes.size(); ++i) {
    capture::Outcome& outcome = tape->outcomes[i];
    if (outcome.kind == "loss") {
      const LossNote& note = *losses[loss++];
      const bool is_one = outcome.value.tensors.size() == 1 && outcome.value.tensors[0].sizes.empty();
      outcome.checksum = note.sum;
      outcome.flaws = {is_one, std::isnan(note.value) ? 1u : 0u, std::isinf(note.value) ? 1u : 0u};
      outcome.sample_every = 0;
      outcome.sample.clear();
      continue;
    }
    const std::size_t index = std::stoul(outcome.name);
    at::Tensor value;
    if (outcome.kind == "gradient") {
      if (index >= gradients.size() || gradients[index] == nullptr) return "it made a gradient that this step has not";
      value = *gradients[index];
    } else {
      auto buffer = t.buffers[index].lock();
      if (!buffer) return "a buffer of it is gone";
      value = at::Tensor(std::move(buffer));
    }
    hand->know_outcome(i, value);
  }
  return "";
}

// While a template is recorded every loss is entered as a sink. Only the bad ones of this step remain, with its values.
// The sinks are visited in order, which is that of `losses`.
void keep_bad_losses(const std::vector<const LossNote*>& losses, record::Trace* trace) {
  std::size_t loss = 0;
  std::erase_if(trace->sinks, [&](record::Sink& sink) {
    const LossNote& note = *losses[loss++];
    sink.value.health = {};
    sink.value.health.numel = 1;  // of several values only that one is bad is known
    sink.value.health.nan = std::isnan(note.value);
    sink.value.health.pos_inf = note.value > 0 && std::isinf(note.value);
    sink.value.health.neg_inf = note.value < 0 && std::isinf(note.value);
    sink.value.first_bad = note.bad ? 0 : -1;
    return !note.bad;
  });
}

}  // namespace

// The cheap reasons against it first. From put_tape_in_hand() on the template's tape replaces what was recorded; where
// a reason comes after that, no TemplateInHand is left, and the caller drops the tape.
std::string bind_template(const OptimizerEntry& entry) {
  put_template_down();
  const Template* const found = template_of(entry.ordinal);
  if (found == nullptr) return "no step of it was recorded yet";
  const Template& t = *found;
  if (!t.why_not.empty()) return t.why_not;
  OpenWindow window;
  std::vector<const LossNote*> losses;
  if (!open_window(&window)) return "nothing is kept of where this step began";
  if (in_backward()) return "this step is taken inside backward";
  // Gradients that another optimizer's backward left to this one are on no tape of it: where they were not dropped, the
  // bits are others.
  if (!losses_since(window.loss, &losses)) return "this step has a loss that was made by a closure";
  if (losses.size() != t.losses.size())
    return "it has " + std::to_string(t.losses.size()) + " losses, this step " + std::to_string(losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses[i]->bad && graph_of_loss(losses[i]->serial) != t.losses[i])
      return "this step's loss was computed by other operations";
  }
  const std::vector<const LoaderEvent*> batches = loader_log().batches_since(window.batches);

  capture::Tape* const tape = put_tape_in_hand(capture::link(t.raw));
  if (!tape->gaps.empty()) return tape->gaps.front();
  // Settings such as deterministic algorithms may have changed since the template was recorded: those of this step
  // count.
  for (auto& [key, value] : observe::torch_settings()) {
    for (auto& [name, recorded] : tape->settings) {
      if (name == key) recorded = value;
    }
  }
  auto hand = std::make_unique<TemplateInHand>(tape, t.trace);
  std::unordered_map<std::uint32_t, capture::StorageId> ids;
  for (capture::StorageId id = 0; id < tape->storages.size(); ++id) ids.emplace(tape->storages[id].recorded, id);
  if (std::string why = put_batches(t, batches, ids, tape, hand.get()); !why.empty()) return why;
  std::unordered_set<std::uint32_t> in_batch;
  for (const BatchPiece& piece : t.pieces) in_batch.insert(piece.number);
  for (const TapeRecorder::Input& input : t.inputs) {
    const auto id = ids.find(input.number);
    if (id == ids.end() || in_batch.contains(input.number) ||
        tape->storages[id->second].origin != capture::Storage::kInput)
      continue;
    if (!put_content(window, input, id->second, hand.get())) return "what it reads is not there any more";
  }
  put_generators(t, window, batches, tape);
  if (std::string why = put_outcomes(t, entry, losses, tape, hand.get()); !why.empty()) return why;
  const auto is_loss = [](const record::Sink& sink) { return sink.kind == "loss"; };
  // keep_bad_losses() takes sinks and losses in pairs.
  if (hand->trace.sinks.size() != losses.size() || !std::ranges::all_of(hand->trace.sinks, is_loss))
    return "its losses are not in its trace";
  keep_bad_losses(losses, &hand->trace);
  take_template_in_hand(std::move(hand));
  return "";
}

}  // namespace finitude::bindings
