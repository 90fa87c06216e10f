#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/numbers.h"
#include "checkpoint/views.h"

namespace finitude::checkpoint {
namespace {

constexpr std::size_t kElements = std::size_t{1} << 16;      // that are compared at a time
constexpr std::uint64_t kMostHeld = std::uint64_t{1} << 30;  // bytes of a tensor that is not contiguous

// The elements of a tensor in row-major order.
class Elements {
 public:
  Elements(const Checkpoint& checkpoint, const Tensor& tensor)
      : tensor_(tensor),
        storage_(checkpoint.storages[tensor.storage]),
        view_(tensor.shape, tensor.strides),
        indices_(tensor.shape.size()) {}

  // The next `count` of them.
  Status next(std::size_t count, std::vector<char>* into) {
    const std::size_t size = storage_.type.bytes;
    into->resize(count * size);
    if (view_.is_contiguous()) {
      const std::uint64_t at = (tensor_.offset + done_) * size;
      done_ += count;
      return storage_.data.read(at, into->data(), into->size());
    }
    if (Status status = hold(); !status.ok()) return status;
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(into->data() + i * size, held_.data() + place_ * size, size);
      advance();
    }
    return {};
  }

 private:
  Status hold() {
    if (!held_.empty()) return {};
    std::uint64_t span = 0;
    (void)span_of(tensor_.shape, tensor_.strides, &span);
    const std::size_t size = storage_.type.bytes;
    if (span > kMostHeld / size)
      return Status(StatusCode::kTooLarge, "has a transposed or strided tensor of more than 1 GiB: " + tensor_.name);
    held_.resize(static_cast<std::size_t>(span * size));
    return storage_.data.read(tensor_.offset * size, held_.data(), held_.size());
  }

  void advance() {
    for (std::size_t d = indices_.size(); d-- > 0;) {
      place_ += static_cast<std::uint64_t>(tensor_.strides[d]);
      if (++indices_[d] < tensor_.shape[d]) return;
      place_ -= static_cast<std::uint64_t>(tensor_.strides[d] * tensor_.shape[d]);
      indices_[d] = 0;
    }
  }

  const Tensor& tensor_;
  const Storage& storage_;
  const View view_;
  std::uint64_t done_ = 0, place_ = 0;
  std::vector<std::int64_t> indices_;
  std::vector<char> held_;
};

// Adds the reals at both places. True: they differ.
bool add_real(const Numbers& na, const Numbers& nb, bool has_ulps, const char* a, const char* b, Distance* distance) {
  const double va = na.value(a), vb = nb.value(b);
  if (va == vb || (std::isnan(va) && std::isnan(vb))) {
    // Integers beyond 2^53 may differ all the same.
    const bool is_exact = na.is_float() || nb.is_float() || na.bytes() != nb.bytes() || na.bytes() < 8;
    if (is_exact || std::memcmp(a, b, na.bytes()) == 0) return false;
  }
  if (!distance->first) {
    distance->a = va;
    distance->b = vb;
  }
  if (!std::isfinite(va) || !std::isfinite(vb)) {
    ++distance->non_finite;
    return true;
  }
  const double gap = std::fabs(va - vb);
  distance->absolute = std::max(distance->absolute, gap);
  if (const double larger = std::max(std::fabs(va), std::fabs(vb)); larger > 0)
    distance->relative = std::max(distance->relative, gap / larger);
  if (has_ulps) {
    const std::int64_t ra = na.rank(a), rb = nb.rank(b);
    const std::uint64_t ulps =
        static_cast<std::uint64_t>(std::max(ra, rb)) - static_cast<std::uint64_t>(std::min(ra, rb));
    distance->ulps = std::max(distance->ulps.value_or(0), ulps);
  }
  return true;
}

Status measure(const Checkpoint& ca, const Tensor& ta, const Checkpoint& cb, const Tensor& tb, Distance* distance) {
  const ElementType &type_a = ca.storages[ta.storage].type, &type_b = cb.storages[tb.storage].type;
  const Numbers na(type_a), nb(type_b);
  if (na.reals() != nb.reals()) return {};  // complex against real: the dtype is said
  const bool is_one_type = type_a.name == type_b.name, has_ulps = is_one_type && na.is_float();
  Elements ea(ca, ta), eb(cb, tb);
  std::vector<char> a, b;
  const std::uint64_t all = View(ta.shape, ta.strides).elements();
  for (std::uint64_t done = 0; done < all; done += kElements) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kElements, all - done));
    if (Status status = ea.next(count, &a); !status.ok()) return status;
    if (Status status = eb.next(count, &b); !status.ok()) return status;
    if (is_one_type && std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
    for (std::size_t i = 0; i < count; ++i) {
      bool differs = false;
      for (std::size_t part = 0; part < na.reals(); ++part) {
        const std::size_t real = i * na.reals() + part;
        differs |= add_real(na, nb, has_ulps, a.data() + real * na.bytes(), b.data() + real * nb.bytes(), distance);
      }
      if (!differs) continue;
      ++distance->elements;
      if (!distance->first) distance->first = done + i;
    }
  }
  return {};
}

std::multimap<std::string, const Tensor*> by_name(const Checkpoint& checkpoint) {
  std::multimap<std::string, const Tensor*> tensors;
  for (const Tensor& tensor : checkpoint.tensors) tensors.emplace(tensor.name, &tensor);
  return tensors;
}

const std::vector<std::int64_t>& whole(const Tensor& tensor) {
  return tensor.full_shape.empty() ? tensor.shape : tensor.full_shape;
}

// The piece of B that holds the same elements as one of A, or null.
const Tensor* same_piece(const std::multimap<std::string, const Tensor*>& tensors, const Tensor& of) {
  const auto [begin, end] = tensors.equal_range(of.name);
  for (auto at = begin; at != end; ++at) {
    if (at->second->begins == of.begins && at->second->shape == of.shape) return at->second;
  }
  return nullptr;
}

}  // namespace

Compared compare(const Checkpoint& a, const Checkpoint& b) {
  using Kind = Difference::Kind;
  Compared compared;
  const auto in_a = by_name(a), in_b = by_name(b);
  std::string last;  // of the pieces of a tensor, one is enough to say that they do not fit
  for (const Tensor& ta : a.tensors) {
    const auto other = in_b.find(ta.name);
    const bool is_new = ta.name != last;
    last = ta.name;
    if (other == in_b.end()) {
      if (is_new) compared.differences.push_back({Kind::kOnlyA, ta.name, &ta, nullptr, {}});
      continue;
    }
    const Tensor* tb = same_piece(in_b, ta);
    compared.tensors += is_new;
    if (tb == nullptr) {
      const Kind kind = whole(ta) == whole(*other->second) ? Kind::kPieces : Kind::kShape;
      if (is_new) compared.differences.push_back({kind, ta.name, &ta, other->second, {}});
      continue;
    }
    Difference difference{Kind::kValues, ta.name, &ta, tb, {}};
    if (Status status = measure(a, ta, b, *tb, &difference.distance); !status.ok()) {
      compared.status = status;
      return compared;
    }
    const bool is_one_type = a.storages[ta.storage].type.name == b.storages[tb->storage].type.name;
    if (!is_one_type) difference.kind = Kind::kDType;
    if (!is_one_type || difference.distance.first) compared.differences.push_back(std::move(difference));
  }
  last.clear();
  for (const Tensor& tb : b.tensors) {
    if (!in_a.contains(tb.name) && tb.name != last)
      compared.differences.push_back({Kind::kOnlyB, tb.name, nullptr, &tb, {}});
    last = tb.name;
  }
  return compared;
}

}  // namespace finitude::checkpoint
