#include "locate/writes.h"

#include <algorithm>
#include <string_view>

#include "locate/op_kinds.h"

namespace finitude::locate {
namespace {

using record::kNone;

bool readable(const record::TensorUse& use) { return use.storage != kNone && use.begin < use.end; }

std::string_view list_name(const record::TensorUse& use) {
  const std::string_view arg = use.arg;
  return arg.substr(0, arg.find('['));
}

}  // namespace

std::vector<Member> members(const std::vector<record::TensorUse>& uses) {
  std::vector<Member> out(uses.size());
  for (std::size_t i = 0; i < uses.size();) {
    std::size_t end = i + 1;
    while (end < uses.size() && list_name(uses[end]) == list_name(uses[i])) ++end;
    for (std::size_t k = i; k < end; ++k) {
      out[k] = {static_cast<std::uint32_t>(k - i), static_cast<std::uint32_t>(end - i)};
    }
    i = end;
  }
  return out;
}

std::vector<Write> writes_of(const record::Op& op, bool has_children) {
  std::vector<Write> out;
  if (op.is_view) return out;
  // Inputs by storage; linear search would be quadratic for list ops over a whole model.
  std::vector<std::uint32_t> by_storage(op.inputs.size());
  for (std::uint32_t i = 0; i < by_storage.size(); ++i) by_storage[i] = i;
  const auto storage = [&](std::uint32_t i) { return op.inputs[i].storage; };
  std::ranges::stable_sort(by_storage, {}, storage);

  const std::vector<Member> lists = members(op.outputs);
  std::vector<bool> shown(op.inputs.size());
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const record::TensorUse& use = op.outputs[k];
    if (!readable(use)) continue;
    bool alias = false, written = false;
    Kinds before = 0;
    for (const std::uint32_t i : std::ranges::equal_range(by_storage, use.storage, {}, storage)) {
      const record::TensorUse& in = op.inputs[i];
      alias = true;
      written |= in.written;
      before |= kinds_of(in.health);
      if (in.begin == use.begin && in.end == use.end) shown[i] = true;
    }
    // A view holds nothing that was not there before; what shows something new was written, whatever the
    // schema says.
    if (alias && !written && (kinds_of(use.health) & ~before) == 0) continue;
    out.push_back({&use, lists[k].index, lists[k].size, false});
  }
  if (has_children) return out;
  const std::vector<Member> inputs = members(op.inputs);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const record::TensorUse& in = op.inputs[i];
    if (!in.written || shown[i] || !readable(in) || in.dtype == sense::DType::kOther || op.failed) continue;
    out.push_back({&in, inputs[i].index, inputs[i].size, true});
  }
  return out;
}

}  // namespace finitude::locate
