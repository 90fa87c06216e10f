#include "locate/op_kinds.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace finitude::locate {
namespace {

// Sorted, for binary search.
constexpr auto kCasts = std::to_array<std::string_view>({"_to_copy", "clone", "contiguous", "copy", "to", "type_as"});

constexpr auto kMoves = std::to_array<std::string_view>({"_cat",
                                                         "_index_put_impl",
                                                         "_pad_circular",
                                                         "_pad_enum",
                                                         "_reshape_copy",
                                                         "alias_copy",
                                                         "as_strided_copy",
                                                         "as_strided_scatter",
                                                         "broadcast_tensors",
                                                         "cat",
                                                         "column_stack",
                                                         "concat",
                                                         "concatenate",
                                                         "constant_pad_nd",
                                                         "diag",
                                                         "diag_embed",
                                                         "diagonal_scatter",
                                                         "dstack",
                                                         "embedding",
                                                         "expand_copy",
                                                         "fill",
                                                         "fill_diagonal",
                                                         "flatten",
                                                         "flip",
                                                         "full",
                                                         "full_like",
                                                         "gather",
                                                         "hstack",
                                                         "index",
                                                         "index_copy",
                                                         "index_fill",
                                                         "index_put",
                                                         "index_select",
                                                         "masked_fill",
                                                         "masked_scatter",
                                                         "masked_select",
                                                         "new_full",
                                                         "pad",
                                                         "permute_copy",
                                                         "put",
                                                         "reflection_pad1d",
                                                         "reflection_pad2d",
                                                         "repeat",
                                                         "repeat_interleave",
                                                         "replication_pad1d",
                                                         "replication_pad2d",
                                                         "reshape",
                                                         "roll",
                                                         "rot90",
                                                         "scalar_tensor",
                                                         "scatter",
                                                         "select_copy",
                                                         "select_scatter",
                                                         "slice_copy",
                                                         "slice_scatter",
                                                         "stack",
                                                         "take",
                                                         "take_along_dim",
                                                         "tile",
                                                         "tril",
                                                         "triu",
                                                         "unfold_copy",
                                                         "unsqueeze_copy",
                                                         "view_copy",
                                                         "vstack",
                                                         "where"});

constexpr auto kSelects = std::to_array<std::string_view>({"amax",        "amin",           "clamp",
                                                           "clamp_max",   "clamp_min",      "clip",
                                                           "cummax",      "cummin",         "fill_diagonal",
                                                           "fmax",        "fmin",           "gather",
                                                           "hardtanh",    "index",          "index_copy",
                                                           "index_fill",  "index_put",      "index_select",
                                                           "masked_fill", "masked_scatter", "masked_select",
                                                           "max",         "maximum",        "min",
                                                           "minimum",     "nan_to_num",     "nanmean",
                                                           "nanmedian",   "nanquantile",    "nansum",
                                                           "narrow",      "nll_loss",       "nll_loss_forward",
                                                           "put",         "relu",           "relu6",
                                                           "scatter",     "select_scatter", "slice_scatter",
                                                           "sort",        "take",           "take_along_dim",
                                                           "threshold",   "topk",           "tril",
                                                           "triu",        "where",          "xlogy"});

constexpr auto kFillers =
    std::to_array<std::string_view>({"bernoulli", "cauchy", "copy", "exponential", "fill", "geometric", "log_normal",
                                     "normal", "random", "uniform", "zero"});

constexpr auto kMonotones = std::to_array<std::string_view>(
    {"_logsumexp", "amax", "amin", "cumsum", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "log_softmax",
     "logcumsumexp", "logsumexp", "mean", "sinh", "softplus", "sqrt", "sum"});

constexpr auto kProducts = std::to_array<std::string_view>(
    {"_fused_rms_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_slow_conv2d_forward",
     "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "linear", "matmul", "mkldnn_convolution", "mm", "mv",
     "native_batch_norm", "native_group_norm", "native_layer_norm", "thnn_conv2d"});

static_assert(std::ranges::is_sorted(kMonotones) && std::ranges::is_sorted(kProducts));
static_assert(std::ranges::is_sorted(kCasts) && std::ranges::is_sorted(kMoves) && std::ranges::is_sorted(kSelects) &&
              std::ranges::is_sorted(kFillers));

bool listed(const auto& names, std::string_view name) { return std::ranges::binary_search(names, name); }

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Words "nan", "inf" and "infinity" in a printed list of numbers.
Kinds kinds_of_text(std::string_view text) {
  Kinds kinds = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (!is_letter(text[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && is_letter(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    if (word == "nan" || word == "NaN") kinds |= kNan;
    if (word == "inf" || word == "Infinity") kinds |= i > 0 && text[i - 1] == '-' ? kNegInf : kPosInf;
    i = end;
  }
  return kinds;
}

}  // namespace

Kinds kinds_of(const sense::Health& health) noexcept {
  return static_cast<Kinds>((health.nan ? kNan : 0) | (health.pos_inf ? kPosInf : 0) | (health.neg_inf ? kNegInf : 0));
}

Kinds kinds_of(const record::ScalarUse& scalar) noexcept {
  if (!scalar.number) return scalar.text.starts_with('[') ? kinds_of_text(scalar.text) : Kinds{0};
  if (std::isnan(*scalar.number)) return kNan;
  if (std::isinf(*scalar.number)) return *scalar.number > 0 ? kPosInf : kNegInf;
  return 0;
}

std::string_view base_name(std::string_view name) noexcept {
  if (const auto colons = name.rfind("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  constexpr std::string_view kForeach = "_foreach_";
  if (name.starts_with(kForeach)) name.remove_prefix(kForeach.size());
  if (name.size() > 1 && name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

bool is_dispatcher_op(const record::Op& op) noexcept { return !op.is_node && op.name.find("::") != std::string::npos; }

bool is_cast(const record::Op& op) noexcept { return listed(kCasts, base_name(op.name)); }

bool is_move(const record::Op& op) noexcept {
  const auto name = base_name(op.name);
  return listed(kMoves, name) || listed(kCasts, name);
}

bool is_select(const record::Op& op) noexcept { return listed(kSelects, base_name(op.name)); }

bool is_monotone(const record::Op& op) noexcept { return listed(kMonotones, base_name(op.name)) || is_cast(op); }

bool is_product(const record::Op& op) noexcept { return listed(kProducts, base_name(op.name)); }

bool is_item(const record::Op& op) noexcept {
  const auto name = base_name(op.name);
  return name == "item" || name == "_local_scalar_dense";
}

bool skips_nan(const record::Op& op) noexcept {
  const auto name = base_name(op.name);
  return name == "nanmean" || name == "nansum";
}

bool takes_only_the_shape(const record::Op& op) noexcept {
  const auto name = base_name(op.name);
  return name.ends_with("_like") || name.starts_with("new_");
}

bool is_list_op(const record::Op& op) noexcept {
  return op.name.find("_foreach_") != std::string::npos || op.name.find("_fused_") != std::string::npos;
}

bool is_overwritten(const record::Op& op, const record::TensorUse& input) noexcept {
  if (!input.written) return false;
  const std::string_view arg = input.arg;
  if (arg == "out" || (arg.size() == 4 && arg.starts_with("out") && arg[3] >= '0' && arg[3] <= '9')) return true;
  return (arg == "self" || arg.empty()) && op.name.ends_with('_') && listed(kFillers, base_name(op.name));
}

bool inputs_finite(const record::Op& op) noexcept {
  for (const record::TensorUse& use : op.inputs) {
    if (kinds_of(use.health) != 0 && !is_overwritten(op, use)) return false;
  }
  for (const auto& scalar : op.scalars) {
    if (kinds_of(scalar) != 0) return false;
  }
  return true;
}

}  // namespace finitude::locate
