#include "observe/tape_places_torch.h"

#include "observe/made_nodes_torch.h"

namespace finitude::observe {
namespace {

struct OpenNode {
  std::string key;  // where the engine runs it from
  std::uint32_t place = capture::kNoPlace;
};

// Of the tape of `generation`.
struct OfThread {
  std::uint64_t generation = 0;
  std::unordered_map<std::string, std::uint32_t> known;  // most calls come from where one came from before
  std::vector<OpenNode> nodes;
};
thread_local OfThread of_thread;

}  // namespace

void TapePlaces::start(const Places* places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++generation_;
  places_ = places;
  numbers_.clear();
  lines_.clear();
  made_by_.clear();
}

std::uint32_t TapePlaces::here(std::string* key) {
  const Places* places = nullptr;
  std::uint64_t generation = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    places = places_;
    generation = generation_;
  }
  if (of_thread.generation != generation) {
    of_thread = {};
    of_thread.generation = generation;
  }
  key->clear();
  if (places == nullptr || !places->key(key)) return capture::kNoPlace;
  const auto [known, is_new] = of_thread.known.try_emplace(*key, capture::kNoPlace);
  if (!is_new) return known->second;
  record::Stack stack;
  const std::vector<record::Frame>& frames = stack.frames;
  if (!places->fill_stack(&stack) || frames.empty() || frames[0].line <= 0) return capture::kNoPlace;
  const auto line = static_cast<std::uint32_t>(frames[0].line);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [number, is_first] =
      numbers_.try_emplace({frames[0].file, line, stack.module}, static_cast<std::uint32_t>(lines_.size()));
  if (is_first) lines_.push_back({frames[0].file, line, "", stack.module});
  known->second = number->second;
  return number->second;
}

TapePlaces::Where TapePlaces::now(const at::RecordFunction& fn) {
  thread_local std::string key;
  Where where{here(&key), false};
  if (!of_thread.nodes.empty()) {
    const OpenNode& node = of_thread.nodes.back();
    if (where.place == capture::kNoPlace || key == node.key) where = {node.place, true};
  }
  if (fn.seqNr() >= 0 && where.place != capture::kNoPlace) {
    const std::lock_guard<std::mutex> lock(mutex_);
    made_by_[node_key(at::RecordFunction::currentThreadId(), static_cast<std::uint64_t>(fn.seqNr()))] = where.place;
  }
  return where;
}

void TapePlaces::begin_node(const at::RecordFunction& fn) {
  OpenNode node;
  here(&node.key);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = made_by_.find(node_key(fn.forwardThreadId(), static_cast<std::uint64_t>(fn.seqNr())));
  if (found != made_by_.end()) node.place = found->second;
  of_thread.nodes.push_back(std::move(node));
}

void TapePlaces::end_node() {
  if (!of_thread.nodes.empty()) of_thread.nodes.pop_back();
}

std::vector<capture::Place> TapePlaces::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::move(lines_);
}

}  // namespace finitude::observe
