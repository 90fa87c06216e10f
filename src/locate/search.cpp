#include "locate/search.h"

namespace finitude::locate {

using record::kNone;

void Search::follow(Range sources, Labels mask, EventId from) {
  const auto reach = [&](EventId event) {
    if (event == kNone || seen_[event]) return;
    seen_[event] = true;
    next_[event] = from;
    queue_.push_back(event);
  };
  for (std::uint32_t i = 0; i < sources.count; ++i) {
    const Source& source = flow_.sources[sources.begin + i];
    if ((source.labels & mask) == 0) continue;
    if (source.top_only) {
      reach(flow_.layers[source.layer].event);
      continue;
    }
    std::uint16_t want = 0;
    for (int bit = 0; bit < 4; ++bit) {
      if (mask >> bit & 1) want |= static_cast<std::uint16_t>(source.kinds << (3 * bit));
    }
    stack_.push_back(source.layer);
    while (!stack_.empty()) {
      const LayerId id = stack_.back();
      stack_.pop_back();
      if ((layer_seen_[id] & want) == want) continue;
      layer_seen_[id] |= want;
      const Layer& layer = flow_.layers[id];
      if ((labels_of(layer, source.kinds) & mask) == 0) continue;
      if ((layer.kinds & source.kinds) != 0 && (layer.label & mask) != 0) reach(layer.event);
      if (layer.prev != kNone) stack_.push_back(layer.prev);
      if (layer.other != kNone) stack_.push_back(layer.other);
    }
  }
}

Labels labels_of(const Flow& flow, Range sources) noexcept {
  Labels labels = 0;
  for (std::uint32_t i = 0; i < sources.count; ++i) labels |= flow.sources[sources.begin + i].labels;
  return labels;
}

Labels worth_following(Labels labels) noexcept {
  if ((labels & kAnyDamage) != 0) return kAnyDamage;
  return labels & kUninit;
}

}  // namespace finitude::locate
