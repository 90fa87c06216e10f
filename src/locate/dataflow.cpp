#include "locate/dataflow.h"

#include <iterator>

namespace finitude::locate {
namespace {

using record::kNone;
constexpr std::size_t kBundle = 256;  // bad spans met by one read before they are made one

}  // namespace

Labels labels_of(const Layer& layer, Kinds kinds) noexcept {
  Labels labels = 0;
  for (int k = 0; k < 3; ++k) {
    if (kinds >> k & 1) labels |= layer.labels[k];
  }
  return labels;
}

LayerId Contents::push(EventId event, Kinds kinds, Labels label, LayerId below, bool open) {
  Layer layer;
  if (below != kNone) layer = layers[below];
  layer.event = event;
  layer.prev = below;
  layer.other = kNone;
  layer.kinds = kinds;
  layer.label = label;
  layer.open |= open;
  for (int k = 0; k < 3; ++k) {
    if (kinds >> k & 1) layer.labels[k] |= label;
  }
  layers.push_back(layer);
  return static_cast<LayerId>(layers.size() - 1);
}

LayerId Contents::join(LayerId a, LayerId b) {
  Layer layer = layers[a];
  layer.event = kNone;
  layer.kinds = 0;
  layer.label = 0;
  layer.prev = a;
  layer.other = b;
  layer.open |= layers[b].open;
  for (int k = 0; k < 3; ++k) layer.labels[k] |= layers[b].labels[k];
  layers.push_back(layer);
  return static_cast<LayerId>(layers.size() - 1);
}

LayerId Contents::lone_layer(EventId event, Kinds kinds, Labels label) {
  return push(event, kinds, label, kNone, false);
}

void Contents::split(Spans* spans, std::int64_t at) {
  auto it = spans->upper_bound(at);
  if (it == spans->begin()) return;
  --it;
  if (it->first >= at || it->second.end <= at) return;
  spans->emplace_hint(std::next(it), at, Span{it->second.end, it->second.top});
  it->second.end = at;
}

Contents::Spans::iterator Contents::clear(Spans* spans, std::int64_t begin, std::int64_t end) {
  split(spans, begin);
  split(spans, end);
  return spans->erase(spans->lower_bound(begin), spans->lower_bound(end));
}

// Strides are not recorded: two views that are not dense are taken for the same one if span, shape and dtype
// agree.
bool Contents::same_view(LayerId layer, const record::TensorUse& use) const {
  const EventId event = layers[layer].event;
  if (event == kNone || event >= geometry.size() || geometry[event] == nullptr || use.dense) return false;
  const record::TensorUse& other = *geometry[event];
  return other.begin == use.begin && other.end == use.end && other.dtype == use.dtype && other.shape == use.shape;
}

void Contents::write_bad(const record::TensorUse& use, EventId event, Kinds kinds, Labels label) {
  Spans& spans = spans_[use.storage];
  if (use.dense) {
    const auto at = clear(&spans, use.begin, use.end);
    spans.emplace_hint(at, use.begin, Span{use.end, push(event, kinds, label, kNone, false)});
    return;
  }
  split(&spans, use.begin);
  split(&spans, use.end);
  LayerId last_below = kNone, last_made = kNone, gap = kNone, over_clean = kNone;
  const auto cover_gap = [&](std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (gap == kNone) gap = push(event, kinds, label, kNone, true);
    spans.emplace(begin, Span{end, gap});
  };
  std::int64_t at = use.begin;
  for (auto it = spans.lower_bound(use.begin); it != spans.end() && it->first < use.end; ++it) {
    cover_gap(at, it->first);
    at = it->second.end;
    LayerId& top = it->second.top;
    if (top == kNone) {
      if (over_clean == kNone) over_clean = push(event, kinds, label, kNone, false);
      top = over_clean;
      continue;
    }
    if (top != last_below) {
      last_below = top;
      const bool again = same_view(top, use);
      const LayerId below = again ? layers[top].prev : top;
      last_made = push(event, kinds, label, below, again && below == kNone && layers[top].open);
    }
    top = last_made;
  }
  cover_gap(at, use.end);
}

void Contents::write_clean(const record::TensorUse& use) {
  Spans& spans = spans_[use.storage];
  if (!use.dense) {
    // Bytes between the elements keep what they had; only an earlier write of this very view is gone.
    for (auto it = spans.lower_bound(use.begin); it != spans.end() && it->first < use.end;) {
      const LayerId top = it->second.top;
      if (top == kNone || !same_view(top, use)) {
        ++it;
        continue;
      }
      const LayerId below = layers[top].prev;
      const bool unwritten = below == kNone && layers[top].open;
      it->second.top = below;
      it = unwritten ? spans.erase(it) : std::next(it);
    }
    return;
  }
  auto next = clear(&spans, use.begin, use.end);
  std::int64_t begin = use.begin, end = use.end;
  if (next != spans.end() && next->first == end && next->second.top == kNone) {
    end = next->second.end;
    next = spans.erase(next);
  }
  if (next != spans.begin()) {
    const auto before = std::prev(next);
    if (before->second.end == begin && before->second.top == kNone) {
      before->second.end = end;
      return;
    }
  }
  spans.emplace_hint(next, begin, Span{end, kNone});
}

Found Contents::read(const record::TensorUse& use, Kinds kinds, std::uint32_t input, std::vector<Source>* out) {
  Spans& spans = spans_[use.storage];
  Found found;
  const std::size_t first_source = out->size();
  const auto add = [&](LayerId layer, bool top_only) {
    const Layer& top = layers[layer];
    const Labels labels = top_only ? ((top.kinds & kinds) != 0 ? top.label : Labels{0}) : labels_of(top, kinds);
    if (labels == 0) return;
    out->push_back({layer, input, kinds, labels, top_only});
    found.labels |= labels;
    for (int k = 0; k < 3; ++k) {
      if (top_only ? (top.kinds >> k & 1) != 0 : top.labels[k] != 0) found.kinds |= static_cast<Kinds>(1 << k);
    }
  };
  auto it = spans.upper_bound(use.begin);
  if (it != spans.begin() && std::prev(it)->second.end > use.begin) --it;
  const auto first = it;
  std::int64_t at = use.begin, last_end = use.begin;
  LayerId last = kNone;
  std::size_t bad = 0;
  for (; it != spans.end() && it->first < use.end; ++it) {
    found.unwritten |= it->first > at;
    at = last_end = it->second.end;
    const LayerId top = it->second.top;
    if (top == kNone || top == last) continue;
    last = top;
    ++bad;
    const bool exact = same_view(top, use);
    found.unwritten |= !exact && layers[top].open;
    add(top, exact);
  }
  found.unwritten |= at < use.end;
  if (bad <= kBundle || out->size() - first_source < 2) return found;
  LayerId all = (*out)[first_source].layer;
  for (std::size_t i = first_source + 1; i < out->size(); ++i) all = join(all, (*out)[i].layer);
  out->resize(first_source);
  add(all, false);
  // Spans whose bad values are of other kinds must not be lost with the range.
  for (auto s = first; s != it; ++s) {
    if (s->second.top != kNone && labels_of(layers[s->second.top], kinds) == 0) all = join(all, s->second.top);
  }
  layers[all].open |= found.unwritten;  // made just now: no one else holds it
  const std::int64_t begin = first->first;
  spans.erase(first, it);
  spans.emplace(begin, Span{last_end, all});
  return found;
}

}  // namespace finitude::locate
