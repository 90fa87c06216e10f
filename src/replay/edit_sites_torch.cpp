#include "replay/edit_sites_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "replay/traced_calls.h"

namespace finitude::replay {
namespace {

using capture::Entry;
using capture::StorageId;
using capture::Tape;
using record::kNone;
using record::OpId;

std::optional<c10::OperatorHandle> handle_of(const Tape& tape, const Entry& entry) {
  if (entry.kind != Entry::kCall || entry.number >= tape.operators.size()) return std::nullopt;
  const capture::Operator& op = tape.operators[entry.number];
  return c10::Dispatcher::singleton().findSchema({op.name, op.overload});
}

class Finder {
 public:
  Finder(const Tape& tape, const record::Trace& trace, const Edit& edit)
      : tape_(tape), trace_(trace), edit_(edit), calls_(tape, trace) {}

  EditSites run() {
    find_calls();
    if (out_.why_not.empty() && out_.sites.empty() && edit_.kind != Edit::Kind::kCompute)
      out_.why_not = "the record of the step does not hold that operation";
    if (out_.why_not.empty()) find_nodes();
    if (out_.why_not.empty()) find_reached();
    return std::move(out_);
  }

 private:
  struct Place {
    std::size_t entry;
    std::string arg;
  };

  // The parts of an op that read the tensor which it takes as `arg`, under the names that they have for it: a linear
  // layer hands its input to addmm, under autocast to a cast.
  std::vector<Place> parts_reading(OpId op, const std::string& arg) const {
    std::vector<Place> out;
    if (op >= trace_.ops.size()) return out;
    const auto& inputs = trace_.ops[op].inputs;
    const auto whole =
        std::find_if(inputs.begin(), inputs.end(), [&](const record::TensorUse& use) { return use.arg == arg; });
    if (whole == inputs.end() || whole->storage == kNone) return out;
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      const OpId traced = tape_.entries[i].traced;
      if (!calls_.stands_for(tape_.entries[i], traced) || !calls_.is_within(traced, op)) continue;
      for (const record::TensorUse& use : trace_.ops[traced].inputs) {
        if (use.storage == whole->storage && use.begin == whole->begin && use.end == whole->end && !use.written)
          out.push_back({i, use.arg});
      }
    }
    return out;
  }

  std::vector<Place> places_of(OpId op, const std::string& arg) const {
    const auto index = calls_.entry_of(op);
    const bool of_argument = edit_.changes_argument();
    const OpId traced = index ? tape_.entries[*index].traced : kNone;
    if (of_argument && traced != op && (!index || calls_.is_within(traced, op))) {
      if (auto parts = parts_reading(op, arg); !parts.empty()) return parts;
    }
    if (!index) return {};
    const bool is_part = of_argument && traced != kNone && traced != op && calls_.is_within(op, traced);
    return {{*index, is_part ? name_around(op, traced, arg) : arg}};
  }

  // What the call that an op is part of calls the tensor which that op takes as `arg`: a cast hands what it is given as
  // `self` to copy_ as `src`. The same name, where it does not hand on that very memory.
  std::string name_around(OpId part, OpId whole, const std::string& arg) const {
    const auto& inputs = trace_.ops[part].inputs;
    const auto read =
        std::find_if(inputs.begin(), inputs.end(), [&](const record::TensorUse& use) { return use.arg == arg; });
    if (read == inputs.end() || read->storage == kNone) return arg;
    for (const record::TensorUse& use : trace_.ops[whole].inputs) {
      if (use.storage == read->storage && use.begin == read->begin && use.end == read->end && !use.arg.empty())
        return use.arg;
    }
    return arg;
  }

  void find_calls() {
    if (edit_.added_to != kNone) {
      out_.added_to = calls_.entry_of(edit_.added_to);
      if (!out_.added_to) out_.why_not = "the logarithm of the sum is not in the record of the step";
    }
    for (std::size_t i = 0; i < edit_.ops.size(); ++i) {
      for (const Place& place : places_of(edit_.ops[i], i < edit_.args.size() ? edit_.args[i] : edit_.arg)) {
        if (!out_.site_at.contains(place.entry)) add_site(place);
        if (!out_.why_not.empty()) return;
      }
    }
  }

  static bool is_of_tensors(const capture::Value& list) {
    return !list.items.empty() && std::ranges::all_of(list.items, [](const capture::Value& item) {
      return item.kind == capture::Value::kTensor;
    });
  }

  bool gradients_flow_to(const Entry& entry, const std::string& arg) const {
    if (entry.traced >= trace_.ops.size()) return true;
    if (trace_.ops[entry.traced].phase == record::Phase::kOptimizer) return false;
    const auto& inputs = trace_.ops[entry.traced].inputs;
    return std::ranges::any_of(inputs,
                               [&](const record::TensorUse& use) { return use.arg == arg && use.requires_grad; });
  }

  void add_site(const Place& place) {
    const Entry& entry = tape_.entries[place.entry];
    const auto handle = handle_of(tape_, entry);
    if (!handle) return;
    EditSite site;
    site.entry = place.entry;
    site.name = place.arg;
    if (edit_.changes_argument()) {
      const auto& arguments = handle->schema().arguments();
      const auto named = [&](const c10::Argument& a) { return a.name() == place.arg; };
      const auto found = std::find_if(arguments.begin(), arguments.end(), named);
      site.arg = static_cast<std::size_t>(found - arguments.begin());
      const std::string& name = tape_.operators[entry.number].name;
      if (found == arguments.end() || site.arg >= entry.args.size()) {
        out_.why_not = name + " has no argument " + place.arg;
        return;
      }
      // What it held is read once and gone, so that it can be changed where it lies. But a derivative may have kept it.
      site.is_written = found->alias_info() != nullptr && found->alias_info()->isWrite();
      if (site.is_written && gradients_flow_to(entry, place.arg)) {
        out_.why_not = name + " writes its argument " + place.arg + ", to which gradients flow";
        return;
      }
      const capture::Value& value = entry.args[site.arg];
      site.is_tensor = value.kind == capture::Value::kTensor;
      if (site.is_tensor)
        site.tensor = value.tensors.at(0);
      else if (value.kind == capture::Value::kList && is_of_tensors(value)) {
        site.is_list = true;
        if (gradients_flow_to(entry, place.arg)) {
          out_.why_not =
              place.arg + " is a list of tensors that gradients flow to: a change of the single ones is not tried";
          return;
        }
      } else if (value.kind != capture::Value::kInt && value.kind != capture::Value::kDouble) {
        out_.why_not = place.arg + " is neither a tensor nor a number";
        return;
      }
    }
    out_.site_at[place.entry] = out_.sites.size();
    out_.sites.push_back(std::move(site));
  }

  void find_nodes() {
    std::map<OpId, std::vector<std::size_t>> by_node;
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      const OpId traced = tape_.entries[i].traced;
      if (calls_.stands_for(tape_.entries[i], traced) && trace_.ops[traced].node != kNone &&
          is_derivative(trace_.ops[traced]))
        by_node[trace_.ops[traced].node].push_back(i);
    }
    std::map<OpId, std::size_t> known;  // nodes, in order: a derivative comes before its own
    for (const auto& [id, entries] : by_node) {
      if (id >= trace_.ops.size() || trace_.ops[id].forward >= trace_.ops.size()) continue;
      const OpId forward = trace_.ops[id].forward;
      if (const auto below = known.find(trace_.ops[forward].node); below != known.end()) {
        known[id] = out_.nodes.size();
        add_node(id, out_.nodes[below->second].site, entries, below->second);
      } else {
        for (std::size_t s = 0; s < out_.sites.size(); ++s) {
          const OpId call = tape_.entries[out_.sites[s].entry].traced;
          if (!calls_.is_within(forward, call) && !calls_.is_within(call, forward)) continue;
          known[id] = out_.nodes.size();
          add_node(id, s, entries, std::nullopt);
          break;
        }
      }
      if (!out_.why_not.empty()) return;
    }
  }

  // What runs below a node from a line of the program is not the derivative: a checkpoint that computes its forward
  // again, a hook. But the line that called autograd.grad is none below the node: it is where the others of its calls
  // come from that have the fewest frames.
  bool is_derivative(const record::Op& op) const {
    if (op.stack == kNone) return true;
    const record::OpId id = op.node;
    const bool generated = id < trace_.ops.size() && !trace_.ops[id].name.empty() &&
                           trace_.ops[id].name.back() >= '0' && trace_.ops[id].name.back() <= '9';
    if (!generated || op.stack >= trace_.stacks.size()) return false;
    const auto below = shallowest_.try_emplace(id, shallowest(id)).first->second;
    return below == op.stack;
  }

  std::uint32_t shallowest(OpId node) const {
    std::uint32_t best = kNone;
    std::size_t frames = 0;
    for (OpId id = node + 1; id < trace_.ops.size(); ++id) {
      const record::Op& op = trace_.ops[id];
      if (op.node != node) {
        if (op.end_order > trace_.ops[node].end_order) break;
        continue;
      }
      const std::size_t now = op.stack < trace_.stacks.size() ? trace_.stacks[op.stack].frames.size() : 0;
      if (best != kNone && now >= frames) continue;
      best = op.stack;
      frames = now;
      if (now == 0) return kNone;
    }
    return best;
  }

  // What that keeps of the node's own calls, the node does not hand on.
  bool is_derivative_of(std::size_t entry, OpId node) const {
    const OpId traced = tape_.entries[entry].traced, own = traced < trace_.ops.size() ? trace_.ops[traced].node : kNone;
    const OpId forward = own < trace_.ops.size() ? trace_.ops[own].forward : kNone;
    return forward < trace_.ops.size() && trace_.ops[forward].node == node;
  }

  // below: the edited node of whose calls this one is the derivative.
  void add_node(OpId id, std::size_t s, const std::vector<std::size_t>& entries, std::optional<std::size_t> below) {
    EditedNode node;
    node.site = s;
    node.again = below.has_value();
    node.entries = entries;
    std::vector<StorageId> order;
    for (const std::size_t i : entries) {
      capture::for_each_tensor(tape_.entries[i].results, [&](const capture::TensorRef& t) {
        if (t.storage != capture::kNoStorage && tape_.storages[t.storage].origin == capture::Storage::kProduced &&
            !was_there(t.storage, entries.front()) && node.made.insert(t.storage).second)
          order.push_back(t.storage);
      });
    }
    std::unordered_set<StorageId> used;
    const auto use = [&](const capture::TensorRef& t) { used.insert(t.storage); };
    for (std::size_t i = entries.front(); i < tape_.entries.size(); ++i) {
      if (std::binary_search(entries.begin(), entries.end(), i) || is_derivative_of(i, id)) continue;
      capture::for_each_tensor(tape_.entries[i].args, use);
    }
    for (const capture::Outcome& outcome : tape_.outcomes) capture::for_each_tensor(outcome.value, use);
    for (const StorageId made : order) {
      if (used.contains(made)) node.handed_on.push_back(made);
    }
    if (below)
      node.made.insert(out_.nodes[*below].made.begin(), out_.nodes[*below].made.end());
    else if (edit_.changes_argument())
      find_gradient(node);
    if (!out_.why_not.empty()) return;
    for (const std::size_t i : entries) out_.node_at[i] = out_.nodes.size();
    out_.nodes.push_back(std::move(node));
  }

  bool was_there(StorageId id, std::size_t before) const {
    bool found = false;
    for (std::size_t i = 0; i < before && !found; ++i) {
      capture::for_each_tensor(tape_.entries[i].results,
                               [&](const capture::TensorRef& t) { found |= t.storage == id; });
    }
    return found;
  }

  // Which of what the node hands on is the gradient of the edited argument. A node computes the gradients of
  // its inputs in the order of their names.
  void find_gradient(EditedNode& node) {
    const EditSite& site = out_.sites[node.site];
    if (!site.is_tensor) return;
    const record::Op& call = trace_.ops[tape_.entries[site.entry].traced];
    std::vector<const record::TensorUse*> wanted;
    for (const auto& use : call.inputs) {
      if (use.requires_grad) wanted.push_back(&use);
    }
    std::sort(wanted.begin(), wanted.end(), [](const auto* a, const auto* b) { return a->arg < b->arg; });
    const auto own = std::find_if(wanted.begin(), wanted.end(), [&](const auto* use) { return use->arg == site.name; });
    if (own == wanted.end()) return;  // none flows to it
    if (node.handed_on.size() == wanted.size())
      node.gradient = node.handed_on[static_cast<std::size_t>(own - wanted.begin())];
    else
      node.gradient = by_size(node, wanted, **own);
    if (node.gradient == capture::kNoStorage)
      out_.why_not = "the record of the step does not show which gradient is that of " + site.name;
  }

  // What a node is given it may hand on as it is, as addmm does for its bias: then the gradient of an argument is the
  // one of its size, where that is of one argument only.
  StorageId by_size(const EditedNode& node, const std::vector<const record::TensorUse*>& wanted,
                    const record::TensorUse& own) const {
    const auto as_many = [&](const record::TensorUse* use) { return use->health.numel == own.health.numel; };
    if (std::count_if(wanted.begin(), wanted.end(), as_many) != 1) return capture::kNoStorage;
    std::unordered_set<StorageId> found;
    for (const std::size_t i : node.entries) {
      capture::for_each_tensor(tape_.entries[i].results, [&](const capture::TensorRef& t) {
        std::uint64_t count = 1;
        for (const std::int64_t size : t.sizes) count *= static_cast<std::uint64_t>(size);
        if (count == own.health.numel && std::ranges::find(node.handed_on, t.storage) != node.handed_on.end())
          found.insert(t.storage);
      });
    }
    return found.size() == 1 ? *found.begin() : capture::kNoStorage;
  }

  void find_reached() {
    const bool everything = edit_.kind == Edit::Kind::kCompute;
    out_.reached.assign(tape_.entries.size(), everything);
    out_.outcome_reached.assign(tape_.outcomes.size(), everything);
    if (everything) return;
    std::unordered_set<StorageId> reached;
    std::unordered_set<StorageId> live;   // of those: not filled in from the tape since
    std::unordered_set<StorageId> given;  // computed from what other ranks answered to changed values, as recorded
    bool exchanged = false;               // changed values were
    auto exchange = tape_.exchanges.begin();
    const auto is_reached = [&](const capture::TensorRef& t) { exchanged = exchanged || reached.contains(t.storage); };
    for (std::size_t i = 0; i < tape_.entries.size(); ++i) {
      for (; exchange != tape_.exchanges.end() && exchange->before <= i; ++exchange)
        capture::for_each_tensor(exchange->args, is_reached);
      const Entry& entry = tape_.entries[i];
      if (entry.kind == Entry::kFill && entry.offset == 0) live.erase(entry.number);
      if (entry.kind == Entry::kFill && exchanged) given.insert(entry.number);
      if (entry.kind != Entry::kCall) continue;
      bool any = out_.site_at.contains(i) || out_.node_at.contains(i), is_given = false;
      const auto read = [&](const capture::TensorRef& t) {
        any = any || reached.contains(t.storage);
        is_given = is_given || given.contains(t.storage);
      };
      capture::for_each_tensor(entry.args, read);
      if (is_given)
        capture::for_each_tensor(entry.results, [&](const capture::TensorRef& t) { given.insert(t.storage); });
      if (!any) continue;
      out_.reached[i] = true;
      // What a copy is put over does not matter.
      const bool copies = tape_.operators[entry.number].name == "aten::copy_";
      bool is_live = out_.site_at.contains(i) || out_.node_at.contains(i);
      for (std::size_t a = copies ? 1 : 0; a < entry.args.size(); ++a)
        capture::for_each_tensor(entry.args[a],
                                 [&](const capture::TensorRef& t) { is_live = is_live || live.contains(t.storage); });
      const auto mark = [&](const capture::TensorRef& t) {
        if (t.storage == capture::kNoStorage) return;
        reached.insert(t.storage);
        if (is_live)
          live.insert(t.storage);
        else if (copies)
          live.erase(t.storage);
      };
      capture::for_each_tensor(entry.results, mark);
      const auto handle = handle_of(tape_, entry);
      if (!handle) continue;
      const auto& arguments = handle->schema().arguments();
      for (std::size_t a = 0; a < entry.args.size() && a < arguments.size(); ++a) {
        if (arguments[a].alias_info() != nullptr && arguments[a].alias_info()->isWrite())
          capture::for_each_tensor(entry.args[a], mark);
      }
    }
    for (std::size_t i = 0; i < tape_.outcomes.size(); ++i)
      capture::for_each_tensor(tape_.outcomes[i].value, [&](const capture::TensorRef& t) {
        if (live.contains(t.storage) && !given.contains(t.storage)) out_.outcome_reached[i] = true;
      });
  }

  const Tape& tape_;
  const record::Trace& trace_;
  const Edit& edit_;
  const TracedCalls calls_;
  mutable std::map<OpId, std::uint32_t> shallowest_;
  EditSites out_;
};

}  // namespace

EditSites find_sites(const Tape& tape, const record::Trace& trace, const Edit& edit) {
  return Finder(tape, trace, edit).run();
}

}  // namespace finitude::replay
