#include "standby/template_tape_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checksum.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/shared_gradients_torch.h"
#include "gate/window_torch.h"
#include "observe/tape_recorder_torch.h"
#include "observe/tape_values_torch.h"
#include "observe/tensor_view_torch.h"
#include "observe/tracer_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "rewind/loader_torch.h"
#include "rewind/window_start_torch.h"
#include "standby/bound_template_torch.h"
#include "standby/tape_level_torch.h"

namespace finitude::bindings {
namespace {

using observe::TapeRecorder;

constexpr std::size_t kMaxTemplates = 8;  // one for each optimizer

std::map<std::uint32_t, Template>& templates() {  // by ordinal of the optimizer
  static auto* const all = new std::map<std::uint32_t, Template>();
  return *all;
}

struct Graph {
  std::uint64_t serial = 0, shape = 0;
};

std::deque<Graph>& graphs() {  // of the last losses, in order
  static auto* const last = new std::deque<Graph>();
  return *last;
}

// The names of the nodes below a tensor and their edges, in one number; never 0. It does not depend on addresses or
// sequence numbers, so two steps that ran the same operations have the same one.
std::uint64_t shape_of(const at::Tensor& root) {
  constexpr std::size_t kMaxNodes = 1'000'000;
  std::unordered_map<const torch::autograd::Node*, std::uint64_t> numbers;
  std::vector<const torch::autograd::Node*> todo;
  std::uint64_t shape = 1;
  const auto mix = [&](std::uint64_t value) { shape = base::checksum(&value, sizeof value, shape) | 1; };
  const auto meet = [&](const torch::autograd::Node* node) {
    const auto [it, is_new] = numbers.try_emplace(node, numbers.size());
    if (is_new) todo.push_back(node);
    mix(it->second);
  };
  if (const auto fn = root.grad_fn()) meet(fn.get());
  while (!todo.empty() && numbers.size() < kMaxNodes) {
    const auto* node = todo.back();
    todo.pop_back();
    const std::string name = node->name();
    mix(base::checksum(name.data(), name.size(), 1));
    for (const auto& edge : node->next_edges()) {
      if (edge.function)
        meet(edge.function.get());
      else
        mix(~std::uint64_t{0});
    }
  }
  return shape;
}

// Of the recording under way: entry of the default generator on the tape -> batch of the window that had just been
// given.
std::map<std::size_t, std::size_t>& noted_now() {
  static auto* const noted = new std::map<std::size_t, std::size_t>();
  return *noted;
}

// Memory whose content a later step has of its own: parameters and buffers, which are found by address. find_pieces()
// adds the batches. The template keeps no copy of it.
std::unordered_set<const c10::StorageImpl*> had_anew(const BufferSnapshot& buffers) {
  std::unordered_set<const c10::StorageImpl*> found;
  for (const auto& entry : live().optimizers) {
    if (!is_alive(*entry)) continue;
    for_each_parameter(entry->self, [&](std::uint32_t, PyObject* p) {
      if (is_tensor_object(p)) found.insert(observe::tape_storage(*THPVariable_Unpack(p).unsafeGetTensorImpl()));
    });
  }
  for (const at::Tensor& buffer : buffers.watched()) found.insert(observe::tape_storage(*buffer.unsafeGetTensorImpl()));
  return found;
}

// By position: the n-th tensor of the k-th batch of the window. Batches are entered into `anew` in a second pass, since
// several pieces may lie in one storage.
void find_pieces(const std::vector<const LoaderEvent*>& batches, Template* t,
                 std::unordered_set<const c10::StorageImpl*>* anew) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::vector<at::Tensor> tensors = tensors_in(batches[i]->result.get());
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      observe::TensorView v;
      if (!observe::view_of(*tensors[k].unsafeGetTensorImpl(), &v) || anew->contains(v.storage)) continue;
      const capture::StorageId number = TapeRecorder::get().number_of(v.storage);
      if (number == capture::kNoStorage) continue;
      t->pieces.push_back({number, i, k, v.begin, v.end, tensors[k].scalar_type(), v.sizes.vec(), v.strides.vec()});
    }
  }
  for (const LoaderEvent* batch : batches) {
    for (const at::Tensor& tensor : tensors_in(batch->result.get()))
      anew->insert(observe::tape_storage(*tensor.unsafeGetTensorImpl()));
  }
}

// From the last batch back to the start: put_generators() takes the first state that matches, and a generator that did
// not move in between has several.
void find_stands(const OpenWindow& window, const std::vector<const LoaderEvent*>& batches, std::vector<Stand>* stands) {
  const auto add = [&](const RngState& state, std::size_t batch) {
    stands->push_back({batch, nullptr, tape_state(state.torch_cpu)});
    for (const TorchRng& own : state.own) stands->push_back({batch, own.of, tape_state(own)});
  };
  for (std::size_t i = batches.size(); i-- > 0;) add(*batches[i]->after, i);
  add(*window.rng, kStart);
}

// Makes the template of the recorded step: "" or why it is none. Names and outcomes come from live state of the gate,
// so it runs before the window is closed.
std::string fill(const OptimizerEntry& entry, std::uint64_t since, Template* t) {
  TapeRecorder& recorder = TapeRecorder::get();
  OpenWindow window;
  std::vector<const LossNote*> losses;
  if (!open_window(&window) || window.loss != since) return "nothing is kept of where it began";
  if (in_backward()) return "it was taken inside backward";
  if (!losses_since(since, &losses) || losses.empty()) return "it has no loss of its own";
  bool any = false;
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    if (const at::Tensor* grad = gradient_of(p))
      any |= recorder.add_outcome("gradient", std::to_string(index), *grad, false);
  });
  for (const at::Tensor& buffer : window.buffers->watched()) {
    if (!recorder.add_outcome("buffer", std::to_string(t->buffers.size()), buffer, false)) continue;
    t->buffers.emplace_back(buffer.getIntrusivePtr());
  }
  const std::vector<const LoaderEvent*> batches = loader_log().batches_since(window.batches);
  auto anew = had_anew(*window.buffers);
  find_pieces(batches, t, &anew);
  find_stands(window, batches, &t->stands);
  t->noted = std::move(noted_now());
  t->batches = batches.size();
  for (const LossNote* loss : losses) t->losses.push_back(graph_of_loss(loss->serial));
  // Everything that asks the recorder for a number or adds an outcome has to come before this: it takes the tape away.
  t->raw = recorder.take_template([&](const c10::StorageImpl& memory) { return anew.contains(&memory); }, &t->inputs);
  if (!t->raw.gaps.empty()) return t->raw.gaps.front();
  if (!any) return "its gradients were made by what is not recorded";
  for (const auto& [key, value] : t->raw.settings) {
    if (key == "collectives") return "other ranks gave it values";
  }
  const auto reported =
      std::count_if(t->raw.outcomes.begin(), t->raw.outcomes.end(), [](const auto& o) { return o.kind == "loss"; });
  if (static_cast<std::size_t>(reported) != t->losses.size()) return "its loss was made by what is not recorded";
  t->trace = observe::Tracer::get().take_trace();
  return t->trace.truncated ? "it has too many operations" : "";
}

}  // namespace

std::vector<at::Tensor> tensors_in(PyObject* batch) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(
      batch,
      [](PyObject* t, const BatchPath&, void* data) {
        static_cast<std::vector<at::Tensor>*>(data)->push_back(THPVariable_Unpack(t));
      },
      &tensors);
  return tensors;
}

// Borrowed pointers into live().losses: valid until the next loss is noted. Losses of a second run do not count.
bool losses_since(std::uint64_t serial, std::vector<const LossNote*>* losses) {
  bool plain = true;
  for (const LossNote& note : live().losses) {
    if (note.serial <= serial || note.second_run_of != 0) continue;
    plain = plain && !note.in_closure && !note.on_device && !is_elsewhere(note);
    losses->push_back(&note);
  }
  return plain;
}

const Template* template_of(std::uint32_t ordinal) noexcept {
  const auto found = templates().find(ordinal);
  return found == templates().end() ? nullptr : &found->second;
}

std::uint64_t graph_of_loss(std::uint64_t serial) noexcept {
  const auto found = std::find_if(graphs().begin(), graphs().end(), [&](const Graph& g) { return g.serial == serial; });
  return found == graphs().end() ? 0 : found->shape;
}

// Walks over the graph, so it runs only where the result may be needed: while a template is recorded, or for a bad
// loss.
void template_loss_given(std::uint64_t serial, const at::Tensor& root, bool is_bad) {
  constexpr std::size_t kMaxGraphs = 1024;
  if (!tape_records_template() && !(is_bad && !templates().empty())) return;
  graphs().push_back({serial, shape_of(root)});
  if (graphs().size() > kMaxGraphs) graphs().pop_front();
}

void template_begins() { noted_now().clear(); }

void template_batch_given() {
  OpenWindow window;
  if (!tape_records_template() || !open_window(&window)) return;
  const std::size_t batches = loader_log().batches_since(window.batches).size();
  if (batches != 0) noted_now()[TapeRecorder::get().note_random()] = batches - 1;
}

// Ends the recording, whether it becomes a template or not. A template that is replaced frees its raw tape here.
void keep_template(const OptimizerEntry& entry, std::uint64_t since) {
  observe::Tracer::get().stop();
  TapeRecorder::get().stop();
  Template t;
  // Both are stopped before: what follows calls operators that are no part of the step.
  std::string why = fill(entry, since, &t);
  if (!why.empty()) {
    t = {};
    t.why_not = std::move(why);
  }
  t.step = entry.step;
  observe::Tracer::get().clear();
  TapeRecorder::get().clear();
  auto& all = templates();
  // A step that cannot serve does not take the place of one that can.
  if (const auto before = all.find(entry.ordinal);
      before != all.end() && before->second.why_not.empty() && !t.why_not.empty())
    return;
  if (all.size() >= kMaxTemplates && !all.contains(entry.ordinal)) all.erase(all.begin());
  all[entry.ordinal] = std::move(t);
}

void drop_templates() noexcept {
  templates().clear();
  put_template_down();
}

}  // namespace finitude::bindings
