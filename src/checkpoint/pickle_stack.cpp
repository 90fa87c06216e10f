#include "checkpoint/pickle_stack.h"

#include <utility>

namespace finitude::checkpoint {
namespace {

// Classes whose objects are dicts from the beginning; of their arguments only the factory of a defaultdict is usual.
constexpr std::pair<std::string_view, std::string_view> kDicts[] = {
    {"collections", "OrderedDict"}, {"collections", "defaultdict"}, {"collections", "Counter"}, {"builtins", "dict"}};

}  // namespace

ValueId PickleStack::add(Kind kind) {
  auto& values = pickle_.values_;
  if (values.size() > kMaxValues) {
    ok_ = false;
    return kNoValue;
  }
  values.emplace_back().kind = kind;
  return static_cast<ValueId>(values.size() - 1);
}

void PickleStack::push_text(Kind kind, std::string_view text) {
  const ValueId id = add(kind);
  value(id).text = text;
  push(id);
}

void PickleStack::push_number(Kind kind, std::int64_t number) {
  const ValueId id = add(kind);
  value(id).number = number;
  push(id);
}

void PickleStack::push_real(double real) {
  const ValueId id = add(Kind::kFloat);
  value(id).real = real;
  push(id);
}

ValueId PickleStack::pop() {
  // What lies below a mark is taken only with it.
  if (is_at_mark()) {
    ok_ = false;
    return kNoValue;
  }
  const ValueId id = stack_.back();
  stack_.pop_back();
  return id;
}

ValueId PickleStack::top() {
  const ValueId id = pop();
  if (ok_) push(id);
  return id;
}

std::vector<ValueId> PickleStack::pop_to_mark() {
  if (marks_.empty()) {
    ok_ = false;
    return {};
  }
  const auto mark = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<ValueId> items(mark, stack_.end());
  stack_.erase(mark, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleStack::push_items(Kind kind, std::vector<ValueId> items) {
  const ValueId id = add(kind);
  if (!ok_) return;
  value(id).items = std::move(items);
  push(id);
}

void PickleStack::push_tuple(std::size_t count) {
  std::vector<ValueId> items(count);
  while (count != 0) items[--count] = pop();
  push_items(Kind::kTuple, std::move(items));
}

void PickleStack::put_in(const std::vector<ValueId>& items, bool are_pairs) {
  PickleValue& into = value(top());
  const bool fits = are_pairs ? into.kind == Kind::kDict || into.kind == Kind::kObject
                              : into.kind == Kind::kList || into.kind == Kind::kSet || into.kind == Kind::kObject;
  if (!ok_ || !fits || (are_pairs && items.size() % 2 != 0)) {
    ok_ = false;
    return;
  }
  into.has_pairs |= are_pairs;
  // All of it, an object of both kinds among them, is bounded: what is put in was on the stack.
  into.items.insert(into.items.end(), items.begin(), items.end());
}

void PickleStack::call(ValueId callable, ValueId arguments) {
  for (const auto& [module, name] : kDicts) {
    if (pickle_.is_global(callable, module, name)) return push_items(Kind::kDict, {});
  }
  const ValueId id = add(Kind::kObject);
  value(id).callable = callable;
  value(id).arguments = arguments;
  push(id);
}

void PickleStack::push_global(std::string_view module, ValueId name) {
  const ValueId id = add(Kind::kGlobal);
  if (!ok_) return;
  value(id).text = module;
  value(id).items = {name};
  push(id);
}

void PickleStack::put_memo(std::uint64_t key) {
  const ValueId id = top();
  if (ok_) memo_[key] = id;
}

void PickleStack::get_memo(std::uint64_t key) {
  const auto found = memo_.find(key);
  ok_ &= found != memo_.end() && stack_.size() <= kMaxValues;
  if (ok_) push(found->second);
}

void PickleStack::push_again() {
  if (stack_.size() > kMaxValues) ok_ = false;
  push(top());
}

void PickleStack::pop_value_or_mark() {
  if (is_at_mark()) {
    (void)pop_to_mark();
  } else {
    (void)pop();
  }
}

void PickleStack::mark() {
  if (marks_.size() > kMaxValues) ok_ = false;
  marks_.push_back(stack_.size());
}

}  // namespace finitude::checkpoint
