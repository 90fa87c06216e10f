#include "observe/softmax_reach_torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>

#include "observe/tensor_view_torch.h"
#include "observe/traced_torch.h"

namespace finitude::observe {
namespace {

constexpr std::int64_t kMostValues = 1 << 20;  // of a tensor
constexpr float kMasked = -1e4f;               // masks are -Inf or close to the end of the range

std::atomic<double> logits_reach{-1}, attention_reach{-1};
std::atomic<at::CallbackHandle> reach_handle{0};

void raise_to(std::atomic<double>* most, double value) noexcept {
  double before = most->load(std::memory_order_relaxed);
  while (value > before && !most->compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// A tensor whose last dimension lies without gaps, as rows of `width` values; false: it is none, or cannot be read.
struct Rows {
  TensorView view;
  std::int64_t width = 0, count = 0;

  bool of(const at::Tensor& tensor) noexcept {
    if (!tensor.defined() || !view_of(*tensor.unsafeGetTensorImpl(), &view) || !view.ordinary || view.batched)
      return false;
    if (view.sizes.empty() || view.strides.back() != 1) return false;
    width = view.sizes.back();
    count = width > 0 ? view.numel / width : 0;
    return count > 0;
  }
  // Of a row, in values from the first one.
  std::int64_t offset(std::int64_t row) const noexcept {
    std::int64_t at = 0;
    for (std::size_t d = view.sizes.size() - 1; d-- > 0;) {
      at += row % view.sizes[d] * view.strides[d];
      row /= view.sizes[d];
    }
    return at;
  }
};

// Calls use(const T*) with the type of the values. False: they are none of ours.
template <typename Use>
bool with_type(const at::Tensor& tensor, const Rows& rows, Use&& use) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      use(reinterpret_cast<const float*>(rows.view.data));
      return true;
    case at::kDouble:
      use(reinterpret_cast<const double*>(rows.view.data));
      return true;
    case at::kBFloat16:
      use(reinterpret_cast<const c10::BFloat16*>(rows.view.data));
      return true;
    case at::kHalf:
      use(reinterpret_cast<const c10::Half*>(rows.view.data));
      return true;
    default:
      return false;
  }
}

template <typename T>
const T* row_at(const T* first, const Rows& rows, std::int64_t row) noexcept {
  return first + rows.offset(row);
}

// The largest magnitude of what is no mask, over rows that lie evenly. Negative: there is none.
double largest_logit(const at::Tensor& tensor) {
  Rows rows;
  if (!rows.of(tensor)) return -1;
  float most = -1;
  with_type(tensor, rows, [&](const auto* first) {
    const std::int64_t every = std::max<std::int64_t>(1, rows.view.numel / kMostValues);
    for (std::int64_t row = 0; row < rows.count; row += every) {
      const auto* const values = row_at(first, rows, row);
      const std::int64_t width = std::min(rows.width, kMostValues);
      for (std::int64_t i = 0; i < width; ++i) {
        const float value = static_cast<float>(values[i]), size = std::abs(value);
        if (value > kMasked && size > most && std::isfinite(size)) most = size;
      }
    }
  });
  return static_cast<double>(most);
}

template <typename T>
float product(const T* a, const T* b, std::int64_t width) noexcept {
  float sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  return sum;
}

// Of one head: the products of its query of the largest norm with the keys that it sees.
template <typename T>
float largest_product(const T* first_q, const Rows& q, std::int64_t begin_q, std::int64_t queries, const T* first_k,
                      const Rows& k, std::int64_t begin_k, std::int64_t keys, bool is_causal) {
  std::int64_t longest = -1;
  float most = 0;
  for (std::int64_t i = 0; i < queries; ++i) {
    const T* const row = row_at(first_q, q, begin_q + i);
    const float squares = product(row, row, q.width);
    if (squares > most && std::isfinite(squares)) {
      most = squares;
      longest = i;
    }
  }
  if (longest < 0) return -1;
  const T* const query = row_at(first_q, q, begin_q + longest);
  float found = -1;
  for (std::int64_t j = 0; j < (is_causal ? std::min(keys, longest + 1) : keys); ++j) {
    const float size = std::abs(product(query, row_at(first_k, k, begin_k + j), q.width));
    if (size > found && std::isfinite(size)) found = size;
  }
  return found;
}

double largest_of_attention(const at::Tensor& query, const at::Tensor& key, double scale, bool is_causal) {
  Rows q, k;
  if (!q.of(query) || !k.of(key) || q.view.sizes.size() < 3 || q.view.sizes.size() != k.view.sizes.size()) return -1;
  if (q.width != k.width || query.scalar_type() != key.scalar_type()) return -1;
  const std::size_t dims = q.view.sizes.size();
  const std::int64_t queries = q.view.sizes[dims - 2], keys = k.view.sizes[dims - 2];
  const std::int64_t heads = q.view.sizes[dims - 3], key_heads = k.view.sizes[dims - 3];
  if (queries <= 0 || keys <= 0 || heads <= 0 || key_heads <= 0 || heads % key_heads != 0) return -1;
  const std::int64_t blocks = q.count / queries, batches = blocks / heads;
  if (k.count / keys / key_heads != batches) return -1;
  const std::int64_t values = (queries + keys) * q.width, most_blocks = std::max<std::int64_t>(1, kMostValues / values);
  const std::int64_t every = std::max<std::int64_t>(1, (blocks + most_blocks - 1) / most_blocks);
  float most = -1;
  with_type(query, q, [&](const auto* first_q) {
    const auto* const first_k = reinterpret_cast<decltype(first_q)>(k.view.data);
    for (std::int64_t block = 0; block < blocks; block += every) {
      const std::int64_t key_block = block / heads * key_heads + block % heads * key_heads / heads;
      most = std::max(
          most, largest_product(first_q, q, block * queries, queries, first_k, k, key_block * keys, keys, is_causal));
    }
  });
  return most < 0 ? -1 : static_cast<double>(most) * scale;
}

void look_at_attention(const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return;
  const at::Tensor& query = inputs[0].toTensor();
  if (!query.defined() || query.dim() < 1 || query.size(-1) <= 0) return;
  const bool is_causal = inputs.size() > 5 && inputs[5].isBool() && inputs[5].toBool();
  const double scale = inputs.size() > 6 && inputs[6].isDouble() ? std::abs(inputs[6].toDouble())
                                                                 : 1 / std::sqrt(static_cast<double>(query.size(-1)));
  raise_to(&attention_reach, largest_of_attention(query, inputs[1].toTensor(), scale, is_causal));
}

void look_at_softmax(const at::RecordFunction& fn, bool is_log) {
  const auto inputs = fn.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isInt()) return;
  const at::Tensor& given = inputs[0].toTensor();
  if (!given.defined()) return;
  if (is_log) return raise_to(&logits_reach, largest_logit(given));
  const std::int64_t dim = inputs[1].toInt();
  if (given.dim() >= 3 && (dim == -1 || dim == given.dim() - 1)) raise_to(&attention_reach, largest_logit(given));
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& fn) {
  const std::string_view name = fn.name();
  const bool is_log = name == "aten::_log_softmax", is_fused = name == "aten::scaled_dot_product_attention";
  if (!is_log && !is_fused && name != "aten::_softmax") return nullptr;
  try {
    if (is_traced()) return nullptr;
    if (is_fused)
      look_at_attention(fn);
    else
      look_at_softmax(fn, is_log);
  } catch (...) {  // the operator that is under way is the program's
  }
  return nullptr;
}

}  // namespace

void begin_softmax_reach() {
  if (reach_handle != 0) return;
  logits_reach = attention_reach = -1;
  reach_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

SoftmaxReach end_softmax_reach() noexcept {
  if (const auto mine = reach_handle.exchange(0)) at::removeCallback(mine);
  return {logits_reach, attention_reach};
}

}  // namespace finitude::observe
