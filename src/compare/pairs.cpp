// Keys of calls for the alignment, and the distances that need no values.
#include <algorithm>
#include <cmath>

#include "base/checksum.h"
#include "compare/judge.h"
#include "compare/record_pairs.h"

namespace finitude::compare {
namespace {

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) { return base::checksum(&value, sizeof value, seed); }
std::uint64_t mix(std::uint64_t seed, std::string_view text) { return base::checksum(text.data(), text.size(), seed); }

double root_mean_square(const Tensor& t) {
  return t.health.sum_sq > 0 ? std::sqrt(t.health.sum_sq / static_cast<double>(t.health.finite())) : t.health.absmax;
}

// The geometric mean over all tensors, so that each of them counts however small it is; 0: not known.
double mean_magnitude(const std::vector<Tensor>& tensors) {
  double logarithms = 0;
  int count = 0;
  for (const Tensor& t : tensors) {
    const double size = t.health.finite() == 0 ? 0 : root_mean_square(t);
    if (size <= 0) continue;
    logarithms += std::log(size);
    ++count;
  }
  return count == 0 ? 0 : std::exp(logarithms / count);
}

// Of the largest tensor; 0: not known.
double magnitude(const std::vector<Tensor>& tensors) {
  double found = 0;
  std::uint64_t largest = 0;
  for (const Tensor& t : tensors) {
    if (t.health.finite() <= largest) continue;
    largest = t.health.finite();
    found = root_mean_square(t);
  }
  return found;
}

Key key_of(const Call& call) {
  Key key;
  key.name = mix(1, stem_of(call.op));
  key.dtypes = key.shapes = key.memory = key.scalars = 7;
  for (const auto* side : {&call.inputs, &call.outputs}) {
    for (const Tensor& t : *side) {
      key.dtypes = mix(key.dtypes, t.element.dtype);
      key.shapes = mix(key.shapes, t.shape.size());
      for (const std::int64_t size : t.shape) key.shapes = mix(key.shapes, static_cast<std::uint64_t>(size));
    }
  }
  for (const Tensor& t : call.inputs) {
    if (t.has_checksum && t.numel() > 1) key.reads = mix(key.reads, t.checksum);
  }
  for (const Tensor& t : call.inputs) key.memory = mix(key.memory, t.source == kNone ? std::string_view(t.name) : "");
  for (const Scalar& s : call.scalars) key.scalars = mix(mix(key.scalars, s.arg), s.text);
  // Numbers of lines move when a line is put in; what is on them stays.
  if (!call.module.empty() || !call.source.empty()) key.place = mix(mix(3, call.module), call.source);
  for (const Tensor& t : call.outputs) {
    if (t.has_checksum && t.numel() > 1) key.values = mix(key.values, t.checksum);
  }
  key.magnitude = magnitude(call.outputs);
  key.taken = mean_magnitude(call.inputs);
  key.form = mix(mix(mix(key.name, key.dtypes), key.shapes), key.memory);
  return key;
}

Distance by_statistics(const Tensor& a, const Tensor& b) {
  if (a.shape != b.shape) return {};
  if (a.has_checksum && b.has_checksum && a.element.dtype == b.element.dtype) {
    if (a.checksum == b.checksum) {
      Distance d;
      d.known = d.exact = d.same_bits = true;
      d.number = a.element.number;
      d.elements = a.numel();
      d.differing = d.nan_in_both = a.health.nan;
      d.scale = a.health.absmax;
      return d;
    }
    if (!is_float(a.element.number)) {
      Distance d;
      d.known = true;
      d.number = a.element.number;
      d.elements = a.numel();
      d.differing = 1;
      return d;
    }
  }
  Distance d = distance(a.health, a.element.number, b.health, b.element.number);
  if (a.has_checksum && b.has_checksum && a.element.dtype == b.element.dtype) {  // the bits differ, whatever those say
    d.known = true;
    d.differing = std::max<std::uint64_t>(d.differing, 1 + d.nan_in_both);
  }
  return d;
}

bool read_values(const Tensor& tensor, const DumpedValues& values, std::string* bytes) {
  RecordValue value;
  value.key = tensor.key;
  value.element = tensor.element;
  value.shape = tensor.shape;
  value.health.numel = tensor.numel();
  return !tensor.key.empty() && values.read(value, bytes);
}

}  // namespace

std::string_view stem_of(std::string_view name) {
  while (name.size() > 1 && name.ends_with('_')) name.remove_suffix(1);
  return name;
}

std::vector<Key> keys_of(const Run& run) {
  std::vector<Key> keys;
  keys.reserve(run.calls.size());
  for (const Call& call : run.calls) keys.push_back(key_of(call));
  return keys;
}

void fill_in_values(const Run& a, const DumpedValues& in_a, const Run& b, const DumpedValues& in_b,
                    const std::vector<Row>& rows, std::vector<Pair>& pairs) {
  pairs.resize(rows.size());
  if (in_a.is_empty() || in_b.is_empty()) return;
  std::string bytes_a, bytes_b;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].a == kGap || rows[r].b == kGap) continue;
    const auto fill = [&](const std::vector<Tensor>& of_a, const std::vector<Tensor>& of_b,
                          std::vector<Distance>& out) {
      out.resize(std::min(of_a.size(), of_b.size()));
      for (std::size_t k = 0; k < out.size(); ++k) {
        const Tensor &ta = of_a[k], &tb = of_b[k];
        const bool same = ta.has_checksum && tb.has_checksum && ta.checksum == tb.checksum;
        if (out[k].known || same || ta.shape != tb.shape) continue;
        if (!read_values(ta, in_a, &bytes_a) || !read_values(tb, in_b, &bytes_b)) continue;
        const std::size_t reals = ta.numel() * static_cast<std::uint64_t>(ta.element.reals);
        out[k] = distance(bytes_a.data(), ta.element.number, bytes_b.data(), tb.element.number, reals);
      }
    };
    fill(a.calls[rows[r].a].inputs, b.calls[rows[r].b].inputs, pairs[r].inputs);
    fill(a.calls[rows[r].a].outputs, b.calls[rows[r].b].outputs, pairs[r].outputs);
  }
}

void fill_in(const Run& a, const Run& b, const std::vector<Row>& rows, std::vector<Pair>& pairs,
             std::vector<Distance>& results) {
  const std::vector<std::uint32_t> others = same_results(a, b);
  results.resize(a.results.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i] != kNone && !results[i].known)
      results[i] = by_statistics(a.results[i].value, b.results[others[i]].value);
  }
  pairs.resize(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].a == kGap || rows[r].b == kGap) continue;
    const Call &ca = a.calls[rows[r].a], &cb = b.calls[rows[r].b];
    const auto fill = [](const std::vector<Tensor>& of_a, const std::vector<Tensor>& of_b, std::vector<Distance>& out) {
      out.resize(std::min(of_a.size(), of_b.size()));
      for (std::size_t k = 0; k < out.size(); ++k) {
        if (!out[k].known) out[k] = by_statistics(of_a[k], of_b[k]);
      }
    };
    fill(ca.inputs, cb.inputs, pairs[r].inputs);
    fill(ca.outputs, cb.outputs, pairs[r].outputs);
  }
}

}  // namespace finitude::compare
