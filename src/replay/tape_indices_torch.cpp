#include "replay/tape_indices_torch.h"

#include <string_view>
#include <utility>

#include "replay/plain_call_torch.h"

namespace finitude::replay {
namespace {

using Check = void (*)(const PlainCall&);

[[noreturn]] void wrong(const char* name) { TORCH_CHECK(false, name, " has numbers that are not possible there"); }

// Every element in [least, most].
void within(const at::Tensor& given, const char* name, std::int64_t least, std::int64_t most) {
  if (!given.defined() || given.numel() == 0) return;
  if (!c10::isIntegralType(given.scalar_type(), /*includeBool=*/false)) wrong(name);
  const at::Tensor numbers = given.to(at::kCPU, at::kLong);
  if (numbers.min().item<std::int64_t>() < least || numbers.max().item<std::int64_t>() > most) wrong(name);
}

// From 0 up, never down, to at most `most`: where parts of something begin.
void ascending(const at::Tensor& given, const char* name, std::int64_t most) {
  within(given, name, 0, most);
  if (given.defined() && given.numel() != 0 && given.dim() != 0 && given.size(-1) > 1 &&
      (given.to(at::kCPU, at::kLong).diff(1, -1) < 0).any().item<bool>()) {
    wrong(name);
  }
}

// The places in a plane of `dims` dimensions that a pooling took its values from.
template <int dims>
void pooled(const PlainCall& call) {
  const at::Tensor self = call.tensor("self");
  std::int64_t plane = 1;
  for (int d = 1; d <= dims && d <= self.dim(); ++d) plane *= self.size(-d);
  within(call.tensor("indices"), "indices", 0, plane - 1);
}

void to_csr(const PlainCall& call) { ascending(call.tensor("self"), "self", call.integer("size") - 1); }

void from_csr(const PlainCall& call) {
  const at::Tensor crow = call.tensor("crow_indices"), col = call.tensor("col_indices");
  if (crow.dim() == 0 || col.dim() == 0) wrong("crow_indices");
  ascending(crow, "crow_indices", col.size(-1));
}

std::vector<std::int64_t> lengths_of(const PlainCall& call, const char* name) {
  if (!call.value(name).isTensor()) return call.integers(name);
  const at::Tensor given = call.tensor(name).to(at::kCPU, at::kLong).contiguous();
  return {given.data_ptr<std::int64_t>(), given.data_ptr<std::int64_t>() + given.numel()};
}

void ctc(const PlainCall& call) {
  const at::Tensor log_probs = call.tensor("log_probs"), targets = call.tensor("targets");
  if (log_probs.dim() < 2) wrong("log_probs");
  const std::int64_t labels = log_probs.size(-1), blank = call.integer("blank");
  if (blank < 0 || blank >= labels) wrong("blank");
  const auto lengths = lengths_of(call, "target_lengths");
  const std::int64_t most = targets.dim() == 2 ? targets.size(1) : targets.numel();
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > most) wrong("target_lengths");
    sum += length;
  }
  if (targets.dim() != 2 && sum > most) wrong("target_lengths");
  for (const std::int64_t length : lengths_of(call, "input_lengths")) {
    if (length < 0 || length > log_probs.size(0)) wrong("input_lengths");
  }
  // Targets beyond the length of their sample may be anything.
  if (targets.dim() != 2) return within(targets.narrow(0, 0, sum), "targets", 0, labels - 1);
  for (std::size_t b = 0; b < lengths.size() && static_cast<std::int64_t>(b) < targets.size(0); ++b)
    within(targets.select(0, static_cast<std::int64_t>(b)).narrow(0, 0, lengths[b]), "targets", 0, labels - 1);
}

void segments(const PlainCall& call) {
  const at::Tensor data = call.tensor("data"), lengths = call.tensor("lengths");
  const std::int64_t axis = call.integer("axis");
  if (axis < 0 || axis >= data.dim()) wrong("axis");
  const std::int64_t size = data.size(axis);
  ascending(call.tensor("offsets"), "offsets", size);
  within(lengths, "lengths", 0, size);
  if (lengths.defined() && lengths.dim() != 0 && (lengths.to(at::kCPU, at::kLong).sum(-1) > size).any().item<bool>())
    wrong("lengths");
}

void bags(const PlainCall& call) {
  const at::Tensor indices = call.tensor("indices"), offsets = call.tensor("offsets");
  within(indices, "indices", 0, call.tensor("weight").size(0) - 1);
  ascending(offsets, "offsets", indices.numel());
}

void bags_backward(const PlainCall& call) {
  const std::int64_t rows = call.integer("num_weights"), bags = call.tensor("grad").size(0);
  within(call.tensor("indices"), "indices", 0, rows - 1);
  constexpr std::int64_t kMax = 2;  // in other modes nobody has written them
  if (call.integer("mode") == kMax) within(call.tensor("maximum_indices"), "maximum_indices", -1, rows - 1);
  within(call.tensor("offset2bag"), "offset2bag", 0, bags - 1);
}

void bags_backward_of_weights(const PlainCall& call) {
  within(call.tensor("indices"), "indices", 0, call.tensor("weight").size(0) - 1);
  within(call.tensor("offset2bag"), "offset2bag", 0, call.tensor("grad").size(0) - 1);
}

void packed(const PlainCall& call) {
  const at::Tensor input = call.tensor("input");
  if (input.dim() < 2) wrong("input");
  within(call.tensor("lengths"), "lengths", 1, input.size(call.flag("batch_first") ? 1 : 0));
}

void pivoted(const PlainCall& call) {
  const at::Tensor lu = call.tensor("LU");
  if (lu.dim() < 2) wrong("LU");
  within(call.tensor("pivots"), "pivots", 1, lu.size(-1));
}

Check check_of(std::string_view op) {
  static constexpr std::pair<std::string_view, Check> kChecks[] = {
      {"_convert_indices_from_coo_to_csr", &to_csr},
      {"_convert_indices_from_csr_to_coo", &from_csr},
      {"_ctc_loss", &ctc},
      {"_ctc_loss_backward", &ctc},
      {"_embedding_bag", &bags},
      {"_embedding_bag_backward", &bags_backward},
      {"_embedding_bag_dense_backward", &bags_backward},
      {"_embedding_bag_forward_only", &bags},
      {"_embedding_bag_per_sample_weights_backward", &bags_backward_of_weights},
      {"_pack_padded_sequence", &packed},
      {"_segment_reduce_backward", &segments},
      {"adaptive_max_pool2d_backward", &pooled<2>},
      {"adaptive_max_pool3d_backward", &pooled<3>},
      {"fractional_max_pool2d_backward", &pooled<2>},
      {"fractional_max_pool3d_backward", &pooled<3>},
      {"linalg_lu_solve", &pivoted},
      {"max_pool2d_with_indices_backward", &pooled<2>},
      {"max_pool3d_with_indices_backward", &pooled<3>},
      {"segment_reduce", &segments}};
  constexpr std::string_view kSpace = "aten::";
  if (!op.starts_with(kSpace)) return nullptr;
  op.remove_prefix(kSpace.size());
  for (const auto& [name, check] : kChecks) {
    if (name == op) return check;
  }
  return nullptr;
}

}  // namespace

void check_trusted_indices(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  if (const Check check = check_of(schema.name())) check(PlainCall(schema, arguments));
}

}  // namespace finitude::replay
