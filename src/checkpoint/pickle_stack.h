// The stack on which the opcodes of a pickle build its values, with its marks
// and its memo.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/pickle.h"

namespace finitude::checkpoint {

// Adds values to a Pickle, which outlives it. After the first thing that no
// pickle does, ok() is false, what is taken from the stack is kNoValue, and
// nothing of the Pickle means anything. For one thread.
class PickleStack {
 public:
  using Kind = PickleValue::Kind;
  static constexpr std::size_t kMaxValues = std::size_t{1} << 22;

  explicit PickleStack(Pickle* pickle) : pickle_(*pickle) {}

  bool ok() const noexcept { return ok_; }
  void require(bool holds) noexcept { ok_ &= holds; }
  bool has_too_many_values() const noexcept { return pickle_.values_.size() > kMaxValues; }

  // Until the next value is added.
  PickleValue& value(ValueId id) { return pickle_.values_[id]; }
  ValueId add(Kind kind);
  void push(ValueId id) { stack_.push_back(id); }
  void push_text(Kind kind,
                 std::string_view text);  // in the bytes of the pickle
  void push_number(Kind kind, std::int64_t number);
  void push_real(double real);
  void push_items(Kind kind, std::vector<ValueId> items);
  void push_tuple(std::size_t count);  // of the last values
  void push_global(std::string_view module, ValueId name);
  void push_again();  // the last value
  // The value of a call, which is not made: the object says what it would be.
  // Of a class of dicts, a dict.
  void call(ValueId callable, ValueId arguments);

  ValueId pop();
  ValueId top();
  void pop_value_or_mark();
  // Into the list, set, dict or object that is the last value.
  void put_in(const std::vector<ValueId>& items, bool are_pairs);

  void mark();
  std::vector<ValueId> pop_to_mark();

  void put_memo(std::uint64_t key);
  void memoize() { put_memo(memo_.size()); }
  void get_memo(std::uint64_t key);

  void end() { pickle_.root_ = pop(); }

 private:
  bool is_at_mark() const { return stack_.size() <= (marks_.empty() ? 0 : marks_.back()); }

  Pickle& pickle_;
  std::vector<ValueId> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, ValueId> memo_;
  bool ok_ = true;
};

}  // namespace finitude::checkpoint
