#include "capture/link.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "capture/tape_values.h"
#include "record/allocating_ops.h"

namespace finitude::capture {
namespace {

constexpr std::size_t kNever = static_cast<std::size_t>(-1);

struct Call {
  std::uint32_t op = 0;
  std::uint64_t thread = 0, start = 0;
  bool grad_mode = false, ended = false, kept = false, of_backward = false;
  std::uint32_t place = kNoPlace, traced = kNotTraced;
  std::size_t parent = kNever;
  std::vector<Value> args, results;
  std::vector<StorageId> produced, written;  // of a kept call: by itself
  std::vector<std::size_t> inside;           // kept calls that it made
};

// A place on the tape: a call, a call of other processes, or an entry that is one already.
struct Place {
  std::size_t call = kNever, exchange = kNever;
  Entry entry;
};

struct FoundExchange {
  std::uint64_t thread = 0;
  Exchange exchange;
};

class Linker {
 public:
  explicit Linker(RawTape raw) : raw_(std::move(raw)) {}

  Tape run() {
    WireReader in(raw_.events);
    for (std::uint64_t number = 1; !in.at_end() && in.ok(); ++number) event(in, number);
    if (!in.ok()) gap("its events are damaged");
    keep_threads_of_outcomes();
    for (const Call& call : calls_) {
      if (!call.ended && kept_threads_.contains(call.thread)) {
        gap("a call did not end: " + raw_.operators[call.op].name.name);
        break;
      }
    }
    return finish();
  }

 private:
  void gap(std::string why) { raw_.gaps.push_back(std::move(why)); }

  void event(WireReader& in, std::uint64_t number) {
    switch (static_cast<RawEvent>(in.u8())) {
      case RawEvent::kStart:
        return start(in, number);
      case RawEvent::kEnd:
        return end(in);
      case RawEvent::kFill: {
        Place place;
        place.entry.kind = Entry::kFill;
        place.entry.number = static_cast<std::uint32_t>(in.var(raw_.storages.size()));
        place.entry.offset = in.var();
        place.entry.bytes = in.text();
        if (const std::uint64_t made = in.var(kNotTraced); made != 0)
          place.entry.traced = static_cast<std::uint32_t>(made - 1);
        if (in.ok()) places_.push_back(std::move(place));
        return;
      }
      case RawEvent::kRandom: {
        Place place;
        place.entry.kind = Entry::kRandom;
        place.entry.number = static_cast<std::uint32_t>(in.var(1u << 20));
        place.entry.bytes = in.text();
        if (in.ok()) places_.push_back(std::move(place));
        return;
      }
      case RawEvent::kExchange:
        return exchange(in);
    }
    in.fail();
  }

  void exchange(WireReader& in) {
    FoundExchange found;
    found.thread = in.var();
    found.exchange.op = in.text();
    const std::uint64_t line = in.var(raw_.places.size());
    if (line != 0) found.exchange.place = static_cast<std::uint32_t>(line - 1);
    found.exchange.of_backward = in.u8() != 0;
    found.exchange.args = read_values(in);
    if (!in.ok()) return;
    Place place;
    place.exchange = exchanges_.size();
    places_.push_back(std::move(place));
    exchanges_.push_back(std::move(found));
  }

  void start(WireReader& in, std::uint64_t number) {
    Call call;
    call.start = number;
    call.thread = in.var();
    call.op = static_cast<std::uint32_t>(in.var());
    call.grad_mode = in.u8() != 0;
    const std::uint64_t place = in.var(raw_.places.size());
    if (place != 0) call.place = static_cast<std::uint32_t>(place - 1);
    call.of_backward = in.u8() != 0;
    const std::uint64_t traced = in.var(kNotTraced);
    if (traced != 0) call.traced = static_cast<std::uint32_t>(traced - 1);
    call.args = read_values(in);
    if (!in.ok() || call.op >= raw_.operators.size()) return in.fail();
    auto& open = open_[call.thread];
    call.parent = open.empty() ? kNever : open.back();
    open.push_back(calls_.size());
    by_start_[number] = calls_.size();
    calls_.push_back(std::move(call));
  }

  void end(WireReader& in) {
    const auto found = by_start_.find(in.var());
    const bool reported = in.u8() != 0;
    std::vector<Value> results = read_values(in);
    if (!in.ok() || found == by_start_.end() || calls_[found->second].ended) return in.fail();
    Call& call = calls_[found->second];
    call.ended = true;
    auto& open = open_[call.thread];
    if (const auto it = std::find(open.begin(), open.end(), found->second); it != open.end())
      open.erase(it, open.end());
    call.results = std::move(results);
    if (reported) judge(found->second);
    if (!call.kept)
      hand_up(call, call.inside);
    else
      hand_up(call, {found->second});
  }

  // What represents a call in the one that made it.
  void hand_up(const Call& call, const std::vector<std::size_t>& kept) {
    if (call.parent == kNever) return;
    auto& inside = calls_[call.parent].inside;
    inside.insert(inside.end(), kept.begin(), kept.end());
  }

  void judge(std::size_t index) {
    Call& call = calls_[index];
    const std::uint64_t writes = raw_.operators[call.op].writes;
    for (std::size_t i = 0; i < call.args.size() && i < 64; ++i) {
      if (((writes >> i) & 1) == 0) continue;
      for_each_tensor(call.args[i], [&](const TensorRef& t) { add(call.written, t.storage); });
    }
    std::vector<StorageId> shown;
    for_each_tensor(call.results, [&](const TensorRef& t) { add(shown, t.storage); });
    std::unordered_set<StorageId> given;
    for_each_tensor(call.args, [&](const TensorRef& t) { given.insert(t.storage); });

    // Calls inside made or wrote what this one shows: it only handed that on.
    const bool fills = !record::allocates(raw_.operators[call.op].name.name);
    for (const std::size_t other : call.inside) {
      if (fills && only_allocates(calls_[other])) continue;
      for (const auto* theirs : {&calls_[other].produced, &calls_[other].written}) {
        for (const StorageId id : *theirs) {
          if (has(shown, id) || has(call.written, id)) return;
        }
      }
    }
    if (fills) take_over(call, shown);
    for (const StorageId id : shown) {
      if (id < raw_.storages.size() && raw_.storages[id].first_seen > call.start && !made_.contains(id) &&
          !given.contains(id)) {
        call.produced.push_back(id);
        made_.insert(id);
      }
    }
    if (call.produced.empty() && call.written.empty()) return;  // a view, or read by the host
    call.kept = true;
    // A hook may have read the result before the call came back.
    auto place = places_.end();
    for (const std::size_t other : call.inside) {
      bool reads = false;
      for_each_tensor(calls_[other].args, [&](const TensorRef& t) { reads |= has(call.produced, t.storage); });
      if (!reads) continue;
      place = std::find_if(places_.begin(), places_.end(), [&](const Place& p) { return p.call == other; });
      break;
    }
    Place own;
    own.call = index;
    places_.insert(place, std::move(own));
  }

  bool only_allocates(const Call& call) const {
    return call.written.empty() && record::allocates(raw_.operators[call.op].name.name);
  }

  // Memory that was asked for inside, and into which no call that is on the tape wrote, this one's kernel filled
  // itself: so do operators of the user's own libraries. It made it, then.
  void take_over(Call& call, const std::vector<StorageId>& shown) {
    std::erase_if(call.inside, [&](std::size_t other) {
      Call& theirs = calls_[other];
      if (!only_allocates(theirs)) return false;
      if (std::none_of(theirs.produced.begin(), theirs.produced.end(), [&](StorageId id) { return has(shown, id); }))
        return false;
      for (const StorageId id : theirs.produced) made_.erase(id);
      theirs.produced.clear();
      theirs.kept = false;
      const auto place =
          std::find_if(places_.rbegin(), places_.rend(), [&](const Place& p) { return p.call == other; });
      if (place != places_.rend()) places_.erase(std::next(place).base());
      return true;
    });
  }

  void add(std::vector<StorageId>& list, StorageId id) {
    if (id != kNoStorage && !has(list, id)) list.push_back(id);
  }
  static bool has(const std::vector<StorageId>& list, StorageId id) {
    return std::find(list.begin(), list.end(), id) != list.end();
  }

  // Threads that compute something of their own (a loader, another model) were recorded with the step, each in the
  // middle of what it did. Kept are those that lead to an outcome, by memory that they made or wrote; without outcomes,
  // all.
  void keep_threads_of_outcomes() {
    std::unordered_map<std::uint64_t, std::unordered_set<StorageId>> touched;  // by thread
    std::unordered_map<StorageId, std::unordered_set<std::uint64_t>> writers;
    for (const Call& call : calls_) {
      auto& own = touched[call.thread];
      const auto touch = [&](const TensorRef& t) { own.insert(t.storage); };
      for_each_tensor(call.args, touch);
      for_each_tensor(call.results, touch);
      for (const auto* theirs : {&call.produced, &call.written}) {
        for (const StorageId id : *theirs) writers[id].insert(call.thread);
      }
    }
    std::vector<std::uint64_t> found;
    const auto keep = [&](StorageId id) {
      const auto it = writers.find(id);
      if (it == writers.end()) return;
      for (const std::uint64_t thread : it->second) {
        if (kept_threads_.insert(thread).second) found.push_back(thread);
      }
    };
    for (const Outcome& outcome : raw_.outcomes)
      for_each_tensor(outcome.value, [&](const TensorRef& t) { keep(t.storage); });
    if (found.empty()) {
      for (const auto& [thread, storages] : touched) kept_threads_.insert(thread);
    }
    while (!found.empty()) {
      const std::uint64_t thread = found.back();
      found.pop_back();
      for (const StorageId id : touched[thread]) keep(id);
    }
  }

  Tape finish() {
    Tape tape;
    tape.settings = std::move(raw_.settings);
    tape.outcomes = std::move(raw_.outcomes);
    tape.refused = std::move(raw_.refused);
    tape.devices = std::move(raw_.devices);
    tape.generators = std::move(raw_.generators);
    std::unordered_map<std::uint32_t, std::uint32_t> ops;
    std::unordered_set<StorageId> used;
    const auto use = [&](const TensorRef& t) {
      if (t.storage != kNoStorage) used.insert(t.storage);
    };
    for (const Place& place : places_) {
      if (place.call != kNever && kept_threads_.contains(calls_[place.call].thread)) {
        for_each_tensor(calls_[place.call].args, use);
        for_each_tensor(calls_[place.call].results, use);
      } else if (place.exchange != kNever && kept_threads_.contains(exchanges_[place.exchange].thread)) {
        for_each_tensor(exchanges_[place.exchange].exchange.args, use);
      }
    }
    for (Place& place : places_) {
      if (place.exchange != kNever) {
        FoundExchange& found = exchanges_[place.exchange];
        if (!kept_threads_.contains(found.thread)) continue;
        found.exchange.before = tape.entries.size();
        found.exchange.place = use_place(found.exchange.place, tape);
        tape.exchanges.push_back(std::move(found.exchange));
        continue;
      }
      if (place.call == kNever) {
        // Where a result was taken for memory that no operator wrote: its call is on the tape.
        if (place.entry.kind == Entry::kFill &&
            (place.entry.number >= raw_.storages.size() || !used.contains(place.entry.number)))
          continue;
        tape.entries.push_back(std::move(place.entry));
        continue;
      }
      Call& call = calls_[place.call];
      if (!kept_threads_.contains(call.thread)) continue;
      const auto [op, is_new] = ops.try_emplace(call.op, static_cast<std::uint32_t>(tape.operators.size()));
      if (is_new) tape.operators.push_back(raw_.operators[call.op].name);
      Entry entry;
      entry.number = op->second;
      entry.grad_mode = call.grad_mode;
      entry.of_backward = call.of_backward;
      entry.traced = call.traced;
      entry.place = use_place(call.place, tape);
      entry.args = std::move(call.args);
      entry.results = std::move(call.results);
      tape.entries.push_back(std::move(entry));
    }
    for (const Outcome& outcome : tape.outcomes) for_each_tensor(outcome.value, use);
    number_storages(used, tape);
    tape.gaps = std::move(raw_.gaps);
    return tape;
  }

  // Only the lines that calls on the tape come from.
  std::uint32_t use_place(std::uint32_t place, Tape& tape) {
    if (place == kNoPlace) return kNoPlace;
    const auto [found, is_new] = places_used_.try_emplace(place, static_cast<std::uint32_t>(tape.places.size()));
    if (is_new) tape.places.push_back(std::move(raw_.places[place]));
    return found->second;
  }

  // Only the storages that the tape needs, numbered again.
  void number_storages(const std::unordered_set<StorageId>& used, Tape& tape) {
    std::vector<StorageId> fresh(raw_.storages.size(), kNoStorage);
    std::vector<std::uint64_t> begins(raw_.storages.size(), 0);
    for (StorageId id = 0; id < raw_.storages.size(); ++id) {
      if (!used.contains(id)) continue;
      fresh[id] = static_cast<StorageId>(tape.storages.size());
      RawStorage& raw = raw_.storages[id];
      Storage& storage = tape.storages.emplace_back();
      storage.size_bytes = raw.size_bytes;
      storage.misaligned = raw.misaligned;
      storage.device = raw.device;
      storage.kind = std::move(raw.kind);
      storage.name = std::move(raw.name);
      storage.traced = raw.traced;
      storage.recorded = id;
      if (made_.contains(id)) continue;
      storage.origin = raw.blank ? Storage::kBlank : Storage::kInput;
      storage.bytes = std::move(raw.bytes);
      if (storage.origin != Storage::kInput) continue;
      if (storage.bytes.empty() && storage.size_bytes != 0 && raw.later_bytes == 0) {
        gap("the content of an input of " + std::to_string(storage.size_bytes) + " bytes is not on the tape");
      }
      begins[id] = storage.traced_begin = raw.begin;
      storage.size_bytes = raw.later_bytes != 0 ? raw.later_bytes : storage.bytes.size();
      storage.parts = std::move(raw.parts);
    }
    const auto renumber = [&](auto& self, std::vector<Value>& values) -> void {
      for (Value& value : values) {
        for (TensorRef& t : value.tensors) {
          if (t.storage >= fresh.size()) continue;
          const auto begin = static_cast<std::int64_t>(begins[t.storage]);
          const auto item = static_cast<std::int64_t>(std::max<std::size_t>(item_bytes(t.dtype), 1));
          // A view of no elements may begin anywhere.
          if (begin != 0) t.offset = std::max<std::int64_t>(0, t.offset - begin / item);
          t.storage = fresh[t.storage];
        }
        self(self, value.items);
      }
    };
    for (Entry& entry : tape.entries) {
      if (entry.kind == Entry::kFill) entry.number = fresh[entry.number];
      renumber(renumber, entry.args);
      renumber(renumber, entry.results);
    }
    for (Exchange& one : tape.exchanges) renumber(renumber, one.args);
    for (Outcome& outcome : tape.outcomes) {
      std::vector<Value> one{std::move(outcome.value)};
      renumber(renumber, one);
      outcome.value = std::move(one[0]);
    }
  }

  RawTape raw_;
  std::vector<Call> calls_;
  std::vector<Place> places_;
  std::vector<FoundExchange> exchanges_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> open_;  // by thread
  std::unordered_map<std::uint64_t, std::size_t> by_start_;
  std::unordered_set<StorageId> made_;  // by a kept call
  std::unordered_set<std::uint64_t> kept_threads_;
  std::unordered_map<std::uint32_t, std::uint32_t> places_used_;
};

}  // namespace

Tape link(RawTape raw) { return Linker(std::move(raw)).run(); }

}  // namespace finitude::capture
