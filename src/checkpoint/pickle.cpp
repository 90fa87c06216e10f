#include "checkpoint/pickle.h"

#include <bit>
#include <charconv>
#include <string>
#include <unordered_map>

#include "capture/wire.h"

namespace finitude::checkpoint {

using Kind = PickleValue::Kind;

namespace {

constexpr std::size_t kMaxValues = std::size_t{1} << 22;

// Classes whose objects are dicts from the beginning; of their arguments only the factory of a defaultdict is usual.
constexpr std::pair<std::string_view, std::string_view> kDicts[] = {
    {"collections", "OrderedDict"}, {"collections", "defaultdict"}, {"collections", "Counter"}, {"builtins", "dict"}};

}  // namespace

// The machine of the pickle format: a stack, marks in it, and a memo.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, Pickle* pickle) : in_(bytes), pickle_(*pickle) {}

  Status run() {
    while (!is_over_ && ok_ && in_.ok()) step(in_.u8());
    if (pickle_.values_.size() > kMaxValues)
      return Status(StatusCode::kTooLarge, "has a pickle of more than " + std::to_string(kMaxValues) + " values");
    if (!is_over_ || !ok_ || !in_.ok()) return Status(StatusCode::kCorrupt, "has a damaged pickle");
    return {};
  }

 private:
  PickleValue& value(ValueId id) { return pickle_.values_[id]; }

  ValueId add(Kind kind) {
    auto& values = pickle_.values_;
    if (values.size() > kMaxValues) {
      ok_ = false;
      return kNoValue;
    }
    values.emplace_back().kind = kind;
    return static_cast<ValueId>(values.size() - 1);
  }
  void push(ValueId id) { stack_.push_back(id); }
  void push_text(Kind kind, std::string_view text) {
    const ValueId id = add(kind);
    value(id).text = text;
    push(id);
  }
  void push_number(Kind kind, std::int64_t number) {
    const ValueId id = add(kind);
    value(id).number = number;
    push(id);
  }
  void push_real(double real) {
    const ValueId id = add(Kind::kFloat);
    value(id).real = real;
    push(id);
  }
  ValueId pop() {
    // What lies below a mark is taken only with it.
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      ok_ = false;
      return kNoValue;
    }
    const ValueId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  ValueId top() {
    const ValueId id = pop();
    if (ok_) push(id);
    return id;
  }
  std::vector<ValueId> pop_to_mark() {
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
  void push_items(Kind kind, std::vector<ValueId> items) {
    const ValueId id = add(kind);
    if (!ok_) return;
    value(id).items = std::move(items);
    push(id);
  }
  void push_tuple(std::size_t count) {
    std::vector<ValueId> items(count);
    while (count != 0) items[--count] = pop();
    push_items(Kind::kTuple, std::move(items));
  }
  void put_in(const std::vector<ValueId>& items, bool are_pairs) {
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
  void call(ValueId callable, ValueId arguments) {
    for (const auto& [module, name] : kDicts) {
      if (pickle_.is_global(callable, module, name)) return push_items(Kind::kDict, {});
    }
    const ValueId id = add(Kind::kObject);
    value(id).callable = callable;
    value(id).arguments = arguments;
    push(id);
  }
  void push_global(std::string_view module, ValueId name) {
    const ValueId id = add(Kind::kGlobal);
    if (!ok_) return;
    value(id).text = module;
    value(id).items = {name};
    push(id);
  }
  std::string_view line() {
    std::string_view rest = in_rest();
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      ok_ = false;
      return {};
    }
    const std::string_view text = in_.raw(end);
    (void)in_.u8();
    return text;
  }
  std::string_view in_rest() {
    capture::WireReader copy = in_;
    return copy.raw(copy.left());
  }
  void push_decimal(std::string_view text) {
    if (text == "00" || text == "01") return push_number(Kind::kBool, text == "01");
    if (text.ends_with('L')) text.remove_suffix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return push(add(Kind::kOther));
    push_number(Kind::kInt, number);
  }
  std::uint64_t little(int count) {
    std::uint64_t number = 0;
    for (int i = 0; i < count; ++i) number |= std::uint64_t{in_.u8()} << (8 * i);
    return number;
  }
  void push_long(std::uint64_t count) {
    const std::string_view raw = in_.raw(count);
    if (raw.size() > 8) return push(add(Kind::kOther));
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < 8; ++i) {  // two's complement: the last byte has the sign
      const bool is_negative = !raw.empty() && (raw.back() & 0x80) != 0;
      const std::uint64_t byte = i < raw.size() ? static_cast<unsigned char>(raw[i]) : is_negative ? 0xffu : 0u;
      number |= byte << (8 * i);
    }
    push_number(Kind::kInt, static_cast<std::int64_t>(number));
  }
  void put_memo(std::uint64_t key) {
    const ValueId id = top();
    if (ok_) memo_[key] = id;
  }
  void get_memo(std::uint64_t key) {
    const auto found = memo_.find(key);
    ok_ &= found != memo_.end() && stack_.size() <= kMaxValues;
    if (ok_) push(found->second);
  }
  std::uint64_t decimal_line() {
    const std::string_view text = line();
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    ok_ &= error == std::errc() && end == text.data() + text.size();
    return number;
  }
  capture::WireReader in_;
  Pickle& pickle_;
  std::vector<ValueId> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, ValueId> memo_;
  bool ok_ = true, is_over_ = false;

  void step(std::uint8_t opcode);
  bool step_plain(std::uint8_t opcode);
  bool step_container(std::uint8_t opcode);
};

// Numbers and texts. False: it is another opcode.
bool PickleMachine::step_plain(std::uint8_t opcode) {
  switch (opcode) {
    case 'N':
      push(add(Kind::kNone));
      return true;
    case 0x88:
    case 0x89:
      push_number(Kind::kBool, opcode == 0x88);
      return true;
    case 'I':
    case 'L':
      push_decimal(line());
      return true;
    case 'J':
      push_number(Kind::kInt, static_cast<std::int32_t>(little(4)));
      return true;
    case 'K':
      push_number(Kind::kInt, in_.u8());
      return true;
    case 'M':
      push_number(Kind::kInt, static_cast<std::int64_t>(little(2)));
      return true;
    case 0x8a:
      push_long(in_.u8());
      return true;
    case 0x8b:
      push_long(little(4));
      return true;
    case 'F':
      (void)line();  // as Python writes it: the value is of no use here
      push(add(Kind::kOther));
      return true;
    case 'G': {
      std::uint64_t bits = 0;  // big-endian
      for (int i = 0; i < 8; ++i) bits = bits << 8 | in_.u8();
      push_real(std::bit_cast<double>(bits));
      return true;
    }
    case 'S':
      push_text(Kind::kBytes, line());
      return true;
    case 'V':
      push_text(Kind::kText, line());
      return true;
    case 'U':
    case 'C':
      push_text(Kind::kBytes, in_.raw(in_.u8()));
      return true;
    case 'T':
    case 'B':
      push_text(Kind::kBytes, in_.raw(little(4)));
      return true;
    case 0x8e:
    case 0x96:
      push_text(Kind::kBytes, in_.raw(in_.u64()));
      return true;
    case 'X':
      push_text(Kind::kText, in_.raw(little(4)));
      return true;
    case 0x8c:
      push_text(Kind::kText, in_.raw(in_.u8()));
      return true;
    case 0x8d:
      push_text(Kind::kText, in_.raw(in_.u64()));
      return true;
    default:
      return false;
  }
}

// Tuples, lists, sets and dicts. False: it is another opcode.
bool PickleMachine::step_container(std::uint8_t opcode) {
  switch (opcode) {
    case '(':
      if (marks_.size() > kMaxValues) ok_ = false;
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push_tuple(0);
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      push_tuple(opcode - 0x84u);
      return true;
    case 't':
      push_items(Kind::kTuple, pop_to_mark());
      return true;
    case ']':
      push_items(Kind::kList, {});
      return true;
    case 'l':
      push_items(Kind::kList, pop_to_mark());
      return true;
    case '}':
      push_items(Kind::kDict, {});
      return true;
    case 'd':
      push_items(Kind::kDict, pop_to_mark());
      if (ok_ && value(stack_.back()).items.size() % 2 != 0) ok_ = false;
      return true;
    case 0x8f:
      push_items(Kind::kSet, {});
      return true;
    case 0x91:
      push_items(Kind::kSet, pop_to_mark());
      return true;
    case 'a': {
      const ValueId item = pop();
      put_in({item}, false);
      return true;
    }
    case 'e':
    case 0x90:
      put_in(pop_to_mark(), false);
      return true;
    case 's': {
      const ValueId item = pop(), key = pop();
      put_in({key, item}, true);
      return true;
    }
    case 'u':
      put_in(pop_to_mark(), true);
      return true;
    default:
      return false;
  }
}

void PickleMachine::step(std::uint8_t opcode) {
  if (!in_.ok() || step_plain(opcode) || step_container(opcode)) return;
  switch (opcode) {
    case 0x80:  // PROTO
      ok_ &= in_.u8() <= 5;
      return;
    case 0x95:  // FRAME
      (void)in_.u64();
      return;
    case '.':
      pickle_.root_ = pop();
      is_over_ = true;
      return;
    case '0':
      if (stack_.size() != (marks_.empty() ? 0 : marks_.back())) {
        (void)pop();
        return;
      }
      [[fallthrough]];  // of a mark
    case '1':
      (void)pop_to_mark();
      return;
    case '2':
      if (stack_.size() > kMaxValues) ok_ = false;
      push(top());
      return;
    case 'p':
      put_memo(decimal_line());
      return;
    case 'q':
    case 'r':
      put_memo(opcode == 'q' ? in_.u8() : little(4));
      return;
    case 0x94:  // MEMOIZE
      put_memo(memo_.size());
      return;
    case 'g':
      get_memo(decimal_line());
      return;
    case 'h':
    case 'j':
      get_memo(opcode == 'h' ? in_.u8() : little(4));
      return;
    case 'c': {
      const std::string_view module = line(), text = line();
      push_text(Kind::kText, text);
      push_global(module, pop());
      return;
    }
    case 0x93: {  // STACK_GLOBAL
      const ValueId name = pop(), module = pop();
      if (ok_) push_global(value(module).text, name);
      return;
    }
    case 'R':     // REDUCE
    case 0x81:    // NEWOBJ
    case 0x92: {  // NEWOBJ_EX
      if (opcode == 0x92) (void)pop();
      const ValueId arguments = pop(), callable = pop();
      if (ok_) call(callable, arguments);
      return;
    }
    case 'i': {  // INST
      const std::string_view module = line(), text = line();
      push_items(Kind::kTuple, pop_to_mark());
      const ValueId arguments = pop();
      push_text(Kind::kText, text);
      push_global(module, pop());
      const ValueId callable = pop();
      if (ok_) call(callable, arguments);
      return;
    }
    case 'o': {  // OBJ
      std::vector<ValueId> items = pop_to_mark();
      ok_ &= !items.empty();
      if (!ok_) return;
      const ValueId callable = items.front();
      items.erase(items.begin());
      push_items(Kind::kTuple, std::move(items));
      const ValueId arguments = pop();
      if (ok_) call(callable, arguments);
      return;
    }
    case 'b': {  // BUILD
      const ValueId state = pop(), object = top();
      if (ok_) value(object).state = state;
      return;
    }
    case 'P':
      push_text(Kind::kText, line());
      push_items(Kind::kPersistent, {pop()});
      return;
    case 'Q': {
      const ValueId id = pop();
      if (ok_) push_items(Kind::kPersistent, {id});
      return;
    }
    default:  // registered extensions and buffers outside of the pickle among them
      ok_ = false;
      return;
  }
}

Status Pickle::read(std::string_view bytes) {
  values_.assign(1, {});
  root_ = kNoValue;
  return PickleMachine(bytes, this).run();
}

bool Pickle::is_global(ValueId id, std::string_view module, std::string_view name) const noexcept {
  const PickleValue& global = at(id);
  return global.kind == Kind::kGlobal && global.text == module && item(global, 0).text == name;
}

ValueId Pickle::find(const PickleValue& dict, std::string_view key) const noexcept {
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& found = at(dict.items[i]);
    if ((found.kind == Kind::kText || found.kind == Kind::kBytes) && found.text == key) return dict.items[i + 1];
  }
  return kNoValue;
}

}  // namespace finitude::checkpoint
