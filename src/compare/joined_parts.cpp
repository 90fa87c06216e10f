#include "compare/joined_parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "compare/part_grid.h"
#include "finitude/scan.h"

namespace finitude::compare {
namespace {

constexpr std::uint64_t kMostJoinedBytes = std::uint64_t{1} << 30;  // of values that are held; beyond: statistics

// One value of a record, on one rank, of one call.
struct Part {
  const RecordValue* value;
  const DumpedValues* values;  // of that rank
};

std::vector<Shape> shapes_of(const std::vector<Part>& parts) {
  std::vector<Shape> shapes;
  for (const Part& part : parts) shapes.push_back(part.value->shape);
  return shapes;
}

bool has_same_bits(const RecordValue& a, const RecordValue& b) {
  return a.shape == b.shape && a.element.dtype == b.element.dtype && a.identity() == b.identity();
}

// What the values of the other side look like.
class OtherSide {
 public:
  // has_other_names: `map` says what this side calls what the other one asks for: then nothing is mapped here.
  OtherSide(const std::vector<Dump>& ranks, const NameMap& map, bool has_other_names) {
    for (const Dump& rank : ranks) {
      std::map<std::string, std::size_t> calls;
      std::set<std::string> seen;
      for (const Record& record : rank.records) {
        for (const std::string& name : names(record, map, has_other_names)) {
          calls_[name] = std::max(calls_[name], ++calls[name]);
          for (const auto* part : {&record.inputs, &record.parameters, &record.outputs}) {
            for (const RecordValue& value : *part) {
              const std::string key = name + "\n" + value.arg;
              shapes_.emplace(key, value.full_shape.empty() ? value.shape : value.full_shape);
              if (seen.insert(key).second) ++(value.full_shape.empty() ? ranks_[key] : placed_[key]);
            }
          }
        }
      }
    }
  }

  static std::string name(const Record& record) { return record.phase + "\n" + plain_name(record); }
  std::size_t calls(const std::string& name) const {
    const auto found = calls_.find(name);
    return found == calls_.end() ? 0 : found->second;
  }
  // The shape of the whole, of which `ranks` ranks here have a part of `shape`; empty: not known.
  Shape whole(const std::string& name, const std::string& arg, const Shape& shape, std::size_t ranks) const {
    const auto found = shapes_.find(name + "\n" + arg);
    if (found == shapes_.end() || found->second.size() != shape.size()) return {};
    Shape whole = found->second;
    const auto others = ranks_.find(name + "\n" + arg);
    const std::size_t other_ranks = placed_.contains(name + "\n" + arg) || others == ranks_.end() ? 1 : others->second;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (whole[d] == shape[d]) continue;
      if (other_ranks < 2 && whole[d] < shape[d]) return {};  // it is the other one that is a part: of the batch
      if (other_ranks < 2) continue;
      const std::int64_t here = shape[d] * static_cast<std::int64_t>(ranks);
      const std::int64_t there = whole[d] * static_cast<std::int64_t>(other_ranks);
      whole[d] = here == there ? here : std::max(whole[d], shape[d]);
    }
    return whole;
  }

 private:
  static std::vector<std::string> names(const Record& record, const NameMap& map, bool has_other_names) {
    std::vector<std::string> all = {name(record)};
    for (const std::string& one : {record.name(), plain_name(record)}) {
      const std::string mapped = has_other_names ? std::string() : map.of(one);  // as B calls it
      if (!mapped.empty()) all.push_back(record.phase + "\n" + mapped);
    }
    return all;
  }

  std::map<std::string, std::size_t> calls_, ranks_, placed_;
  std::map<std::string, Shape> shapes_;
};

class Joiner {
 public:
  Joiner(const std::vector<Dump>& ranks, const OtherSide& others, const NameMap& map, bool is_a)
      : ranks_(ranks), others_(others), map_(map), is_a_(is_a) {
    for (const Dump& rank : ranks) {
      std::set<std::string> names;
      std::map<std::string, std::vector<const Record*>> calls;
      for (const Record& record : rank.records) {
        names.insert(record.phase + "\n" + record.name());
        calls[key_of(record)].push_back(&record);
      }
      names_.push_back(std::move(names));
      calls_.push_back(std::move(calls));
    }
  }

  JoinedDump take() {
    out_.counts.ranks = ranks_.size();
    // Forward from the first rank on, backward from the last: the order of the stages of a pipeline.
    for (const bool is_backward : {false, true}) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        const Dump& rank = ranks_[is_backward ? ranks_.size() - 1 - i : i];
        for (const Record& record : rank.records) {
          if ((record.phase == "backward") == is_backward) add(record);
        }
      }
    }
    return std::move(out_);
  }
  // As the other side calls them.
  const std::set<std::string>& skipped() const noexcept { return skipped_; }

 private:
  using Calls = std::vector<std::pair<const Dump*, std::vector<const Record*>>>;  // of each rank that has the module

  static std::string key_of(const Record& record) { return record.phase + "\n" + record.name() + "\n" + record.op; }

  void add(const Record& record) {
    const std::string key = key_of(record);
    if (!done_.insert(key).second) return;
    if (is_of_parts(record)) {
      skip(record);
      return;
    }
    Calls calls;
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto own = calls_[rank].find(key);
      if (own == calls_[rank].end()) continue;
      most = std::max(most, own->second.size());
      calls.emplace_back(&ranks_[rank], own->second);
    }
    const std::size_t group = calls_of_one(record, calls, most);
    for (std::size_t first = most % group; first < most; first += group) add_group(calls, first, group);
  }

  void skip(const Record& record) {
    ++out_.counts.skipped;
    skipped_.insert(name_there(record));
  }

  // Do ranks hold other modules within this one?
  bool is_of_parts(const Record& record) const {
    if (record.is_parameter()) return false;
    const std::string prefix = record.phase + "\n" + record.module + ".";
    const auto within = [&](const std::set<std::string>& names) {
      std::vector<std::string> found;
      for (auto at = names.lower_bound(prefix); at != names.end() && at->starts_with(prefix); ++at)
        found.push_back(*at);
      return found;
    };
    const std::string own = record.phase + "\n" + record.module;
    std::optional<std::vector<std::string>> first;
    for (const auto& names : names_) {
      if (!names.contains(own)) continue;
      auto found = within(names);
      if (first && *first != found) return true;
      if (!first) first = std::move(found);
    }
    return false;
  }

  std::string name_there(const Record& record) const {
    for (const std::string& one : {record.name(), plain_name(record)}) {
      const std::string mapped = is_a_ ? map_.of(one) : std::string();
      if (!mapped.empty() && others_.calls(record.phase + "\n" + mapped) != 0) return record.phase + "\n" + mapped;
    }
    return OtherSide::name(record);
  }

  // How many calls here are one call there: micro-batches, where the batch of one call is smaller here.
  std::size_t calls_of_one(const Record& record, const Calls& calls, std::size_t most) const {
    const std::string name = name_there(record);
    const std::size_t there = others_.calls(name);
    const Record& one = *calls[0].second[0];
    if (there == 0 || most <= there || one.outputs.empty()) return 1;
    const Shape& shape = one.outputs[0].shape;
    const Shape whole = others_.whole(name, one.outputs[0].arg, shape, calls.size());
    const bool is_smaller = !whole.empty() && !shape.empty() && shape[0] < whole[0];
    return is_smaller ? std::min(most / there, most) : 1;
  }

  void add_group(const Calls& calls, std::size_t first, std::size_t group) {
    std::vector<std::pair<const Dump*, const Record*>> held;  // calls before ranks
    for (std::size_t call = first; call < first + group; ++call) {
      for (const auto& [dump, own] : calls) {
        if (call < own.size()) held.emplace_back(dump, own[call]);
      }
    }
    if (held.empty()) return;
    const Record& like = *held[0].second;
    Record made = like;
    made.call = first / group;
    bool has_batch_parts = false;
    for (auto Record::*which : {&Record::inputs, &Record::parameters, &Record::outputs}) {
      std::vector<RecordValue> values;
      for (std::size_t i = 0; i < (like.*which).size(); ++i) {
        std::vector<Part> parts;
        for (const auto& [dump, record] : held) {
          const RecordValue* value = value_of(record->*which, (like.*which)[i].arg, i);
          if (value != nullptr) parts.push_back({value, &dump->values});
        }
        auto value = join(name_there(like), parts, calls.size(), &has_batch_parts);
        if (value) values.push_back(std::move(*value));
      }
      made.*which = std::move(values);
    }
    if (like.phase == "backward" && !like.is_parameter() && has_batch_parts) {
      skip(like);
      return;
    }
    out_.dump.records.push_back(std::move(made));
  }

  static const RecordValue* value_of(const std::vector<RecordValue>& values, const std::string& arg, std::size_t at) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const RecordValue& v) { return v.arg == arg; });
    if (found != values.end()) return &*found;
    return at < values.size() ? &values[at] : nullptr;
  }

  std::optional<RecordValue> join(const std::string& name, std::vector<Part> parts, std::size_t ranks,
                                  bool* has_batch_parts) {
    const RecordValue& like = *parts[0].value;
    if (!like.full_shape.empty()) return join_placed(parts);
    const Shape whole = others_.whole(name, like.arg, like.shape, ranks);
    const bool is_whole = whole.empty() || whole == like.shape;
    if (is_whole) {
      for (const Part& part : parts) {
        if (has_same_bits(*part.value, like)) continue;
        ++out_.counts.other;
        break;
      }
      return kept(parts[0]);
    }
    std::vector<Part> distinct;  // replicas of a part count once
    for (const Part& part : parts) {
      const bool is_known = std::any_of(distinct.begin(), distinct.end(),
                                        [&](const Part& d) { return has_same_bits(*d.value, *part.value); });
      if (!is_known) distinct.push_back(part);
    }
    auto begins = grid(shapes_of(distinct), whole);
    if (begins) {
      parts = std::move(distinct);
    } else {
      const std::size_t needed = parts_needed(like.shape, whole);
      if (needed != 0 && needed < parts.size()) {
        // Of more calls the last: a pipeline may begin with one that finds shapes. Of more ranks the first.
        const bool has_calls = parts.size() > ranks;
        parts = has_calls ? std::vector<Part>(parts.end() - static_cast<std::ptrdiff_t>(needed), parts.end())
                          : std::vector<Part>(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(needed));
      }
      begins = grid(shapes_of(parts), whole);
    }
    if (!begins) {
      ++out_.counts.unjoined;
      return std::nullopt;
    }
    *has_batch_parts |= like.shape[0] != whole[0];
    return assembled(parts, *begins, whole);
  }

  // Parts of a DTensor: each says where it begins; of a sum over ranks the values are needed.
  std::optional<RecordValue> join_placed(const std::vector<Part>& parts) {
    const RecordValue& like = *parts[0].value;
    if (like.is_partial) return summed(parts);
    std::vector<Part> distinct;
    std::vector<Shape> begins;
    std::uint64_t covered = 0;
    for (const Part& part : parts) {
      const RecordValue& v = *part.value;
      if (elements_of(v.shape) == 0 && !v.is_partial) continue;  // uneven shards: this rank has none
      if (v.full_shape != like.full_shape || v.is_partial || v.begins.size() != v.shape.size() ||
          v.shape.size() != like.full_shape.size()) {
        ++out_.counts.unjoined;
        return std::nullopt;
      }
      if (std::find(begins.begin(), begins.end(), v.begins) != begins.end()) continue;
      for (std::size_t d = 0; d < v.shape.size(); ++d) {
        if (v.begins[d] > v.full_shape[d] - v.shape[d]) {
          ++out_.counts.unjoined;
          return std::nullopt;
        }
      }
      covered += elements_of(v.shape);
      distinct.push_back(part);
      begins.push_back(v.begins);
    }
    if (covered == 0 || covered != elements_of(like.full_shape)) {
      ++out_.counts.unjoined;
      return std::nullopt;
    }
    return distinct.size() == 1 ? kept(distinct[0]) : assembled(distinct, begins, like.full_shape);
  }

  // The sum over ranks, in float64. Ranks with the same bits may be replicas of a summand: how many are to be added is
  // not known then.
  std::optional<RecordValue> summed(const std::vector<Part>& parts) {
    const RecordValue& like = *parts[0].value;
    const std::uint64_t elements = elements_of(like.full_shape);
    const std::size_t width = info(like.element.number).size_bytes;
    bool is_sum = is_float(like.element.number) && like.element.reals == 1 && parts.size() == ranks_.size() &&
                  parts.size() > 1 && elements <= kMostJoinedBytes / sizeof(double);
    std::vector<double> total(is_sum ? static_cast<std::size_t>(elements) : 0, 0.0);
    for (std::size_t i = 0; is_sum && i < parts.size(); ++i) {
      const RecordValue& v = *parts[i].value;
      std::string bytes;
      is_sum = v.is_partial && v.shape == like.full_shape && v.full_shape == like.full_shape &&
               v.element.dtype == like.element.dtype && parts[i].values->read(v, &bytes) &&
               bytes.size() == total.size() * width &&
               std::none_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i),
                            [&](const Part& other) { return has_same_bits(*other.value, v); });
      for (std::size_t e = 0; is_sum && e < total.size(); ++e) total[e] += decode(bytes.data(), v.element.number, e);
    }
    if (!is_sum) {
      ++out_.counts.unjoined;
      return std::nullopt;
    }
    ++out_.counts.joined;
    RecordValue value = like;
    value.shape = like.full_shape;
    value.checksum.clear();
    value.element = element_of_name("float64");
    value.health = sense::full_scan(total.data(), total.size(), sense::DType::kFloat64);
    hold(&value, std::string(reinterpret_cast<const char*>(total.data()), total.size() * sizeof(double)));
    return value;
  }

  // A value as one rank has it, with its content under a name of its own.
  RecordValue kept(const Part& part) {
    RecordValue value = *part.value;
    std::string bytes;
    if (part.values->read(value, &bytes)) hold(&value, std::move(bytes));
    return value;
  }

  RecordValue assembled(const std::vector<Part>& parts, const std::vector<Shape>& begins, const Shape& whole) {
    ++out_.counts.joined;
    RecordValue value = *parts[0].value;
    value.shape = whole;
    value.checksum.clear();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      value.health = sense::merge(value.health, parts[i].value->health);
      value.is_ranged &= parts[i].value->is_ranged;
    }
    const std::uint64_t width = info(value.element.number).size_bytes * static_cast<std::uint64_t>(value.element.reals);
    const std::uint64_t elements = elements_of(whole);
    if (width == 0 || elements == 0 || elements > kMostJoinedBytes / width) return value;
    std::string bytes(static_cast<std::size_t>(elements * width), '\0'), part;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool is_there = parts[i].value->element.dtype == value.element.dtype &&
                            parts[i].values->read(*parts[i].value, &part) &&
                            part.size() == elements_of(parts[i].value->shape) * width;
      if (!is_there) return value;
      copy_part(part, parts[i].value->shape, begins[i], whole, static_cast<std::size_t>(width), &bytes);
    }
    hold(&value, std::move(bytes));
    return value;
  }

  void hold(RecordValue* value, std::string bytes) {
    value->key = std::to_string(held_++);
    if (bytes.size() > kMostJoinedBytes - bytes_) return;
    bytes_ += bytes.size();
    out_.dump.values.put(value->key, std::move(bytes));
  }

  const std::vector<Dump>& ranks_;
  const OtherSide& others_;
  const NameMap& map_;
  const bool is_a_;
  std::vector<std::set<std::string>> names_;                              // of each rank: phase and module
  std::vector<std::map<std::string, std::vector<const Record*>>> calls_;  // of each rank, by key_of
  std::set<std::string> done_, skipped_;
  std::uint64_t held_ = 0, bytes_ = 0;
  JoinedDump out_;
};

void remove(const std::set<std::string>& names, std::vector<Record>* records) {
  std::erase_if(*records, [&](const Record& record) { return names.contains(OtherSide::name(record)); });
}

}  // namespace

JoinedSides join_parts(const std::vector<Dump>& a, const std::vector<Dump>& b, const NameMap& map) {
  const OtherSide known_of_a(a, map, false), known_of_b(b, map, true);
  Joiner of_a(a, known_of_b, map, true), of_b(b, known_of_a, map, false);
  JoinedSides sides{of_a.take(), of_b.take()};
  remove(of_b.skipped(), &sides.a.dump.records);
  remove(of_a.skipped(), &sides.b.dump.records);
  return sides;
}

}  // namespace finitude::compare
