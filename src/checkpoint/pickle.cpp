#include "checkpoint/pickle.h"

#include <bit>
#include <charconv>
#include <string>
#include <utility>

#include "capture/wire.h"
#include "checkpoint/pickle_stack.h"

namespace finitude::checkpoint {

using Kind = PickleValue::Kind;

namespace {

// Reads the opcodes of a pickle.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, Pickle* pickle) : in_(bytes), stack_(pickle) {}

  Status run() {
    while (!is_over_ && stack_.ok() && in_.ok()) step(in_.u8());
    if (stack_.has_too_many_values()) {
      return Status(StatusCode::kTooLarge,
                    "has a pickle of more than " + std::to_string(PickleStack::kMaxValues) + " values");
    }
    if (!is_over_ || !stack_.ok() || !in_.ok()) return Status(StatusCode::kCorrupt, "has a damaged pickle");
    return {};
  }

 private:
  std::string_view line() {
    std::string_view rest = in_rest();
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) {
      stack_.require(false);
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
    if (text == "00" || text == "01") return stack_.push_number(Kind::kBool, text == "01");
    if (text.ends_with('L')) text.remove_suffix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return stack_.push(stack_.add(Kind::kOther));
    stack_.push_number(Kind::kInt, number);
  }
  std::uint64_t little(int count) {
    std::uint64_t number = 0;
    for (int i = 0; i < count; ++i) number |= std::uint64_t{in_.u8()} << (8 * i);
    return number;
  }
  void push_long(std::uint64_t count) {
    const std::string_view raw = in_.raw(count);
    if (raw.size() > 8) return stack_.push(stack_.add(Kind::kOther));
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < 8; ++i) {  // two's complement: the last byte has the sign
      const bool is_negative = !raw.empty() && (raw.back() & 0x80) != 0;
      const std::uint64_t byte = i < raw.size() ? static_cast<unsigned char>(raw[i]) : is_negative ? 0xffu : 0u;
      number |= byte << (8 * i);
    }
    stack_.push_number(Kind::kInt, static_cast<std::int64_t>(number));
  }
  std::uint64_t decimal_line() {
    const std::string_view text = line();
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    stack_.require(error == std::errc() && end == text.data() + text.size());
    return number;
  }

  void step(std::uint8_t opcode);
  bool step_plain(std::uint8_t opcode);
  bool step_container(std::uint8_t opcode);

  capture::WireReader in_;
  PickleStack stack_;
  bool is_over_ = false;
};

// Numbers and texts. False: it is another opcode.
bool PickleMachine::step_plain(std::uint8_t opcode) {
  switch (opcode) {
    case 'N':
      stack_.push(stack_.add(Kind::kNone));
      return true;
    case 0x88:
    case 0x89:
      stack_.push_number(Kind::kBool, opcode == 0x88);
      return true;
    case 'I':
    case 'L':
      push_decimal(line());
      return true;
    case 'J':
      stack_.push_number(Kind::kInt, static_cast<std::int32_t>(little(4)));
      return true;
    case 'K':
      stack_.push_number(Kind::kInt, in_.u8());
      return true;
    case 'M':
      stack_.push_number(Kind::kInt, static_cast<std::int64_t>(little(2)));
      return true;
    case 0x8a:
      push_long(in_.u8());
      return true;
    case 0x8b:
      push_long(little(4));
      return true;
    case 'F':
      (void)line();  // as Python writes it: the value is of no use here
      stack_.push(stack_.add(Kind::kOther));
      return true;
    case 'G': {
      std::uint64_t bits = 0;  // big-endian
      for (int i = 0; i < 8; ++i) bits = bits << 8 | in_.u8();
      stack_.push_real(std::bit_cast<double>(bits));
      return true;
    }
    case 'S':
      stack_.push_text(Kind::kBytes, line());
      return true;
    case 'V':
      stack_.push_text(Kind::kText, line());
      return true;
    case 'U':
    case 'C':
      stack_.push_text(Kind::kBytes, in_.raw(in_.u8()));
      return true;
    case 'T':
    case 'B':
      stack_.push_text(Kind::kBytes, in_.raw(little(4)));
      return true;
    case 0x8e:
    case 0x96:
      stack_.push_text(Kind::kBytes, in_.raw(in_.u64()));
      return true;
    case 'X':
      stack_.push_text(Kind::kText, in_.raw(little(4)));
      return true;
    case 0x8c:
      stack_.push_text(Kind::kText, in_.raw(in_.u8()));
      return true;
    case 0x8d:
      stack_.push_text(Kind::kText, in_.raw(in_.u64()));
      return true;
    default:
      return false;
  }
}

// Tuples, lists, sets and dicts. False: it is another opcode.
bool PickleMachine::step_container(std::uint8_t opcode) {
  switch (opcode) {
    case '(':
      stack_.mark();
      return true;
    case ')':
      stack_.push_tuple(0);
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      stack_.push_tuple(opcode - 0x84u);
      return true;
    case 't':
      stack_.push_items(Kind::kTuple, stack_.pop_to_mark());
      return true;
    case ']':
      stack_.push_items(Kind::kList, {});
      return true;
    case 'l':
      stack_.push_items(Kind::kList, stack_.pop_to_mark());
      return true;
    case '}':
      stack_.push_items(Kind::kDict, {});
      return true;
    case 'd':
      stack_.push_items(Kind::kDict, stack_.pop_to_mark());
      if (stack_.ok()) stack_.require(stack_.value(stack_.top()).items.size() % 2 == 0);
      return true;
    case 0x8f:
      stack_.push_items(Kind::kSet, {});
      return true;
    case 0x91:
      stack_.push_items(Kind::kSet, stack_.pop_to_mark());
      return true;
    case 'a': {
      const ValueId item = stack_.pop();
      stack_.put_in({item}, false);
      return true;
    }
    case 'e':
    case 0x90:
      stack_.put_in(stack_.pop_to_mark(), false);
      return true;
    case 's': {
      const ValueId item = stack_.pop(), key = stack_.pop();
      stack_.put_in({key, item}, true);
      return true;
    }
    case 'u':
      stack_.put_in(stack_.pop_to_mark(), true);
      return true;
    default:
      return false;
  }
}

void PickleMachine::step(std::uint8_t opcode) {
  if (!in_.ok() || step_plain(opcode) || step_container(opcode)) return;
  switch (opcode) {
    case 0x80:  // PROTO
      stack_.require(in_.u8() <= 5);
      return;
    case 0x95:  // FRAME
      (void)in_.u64();
      return;
    case '.':
      stack_.end();
      is_over_ = true;
      return;
    case '0':
      stack_.pop_value_or_mark();
      return;
    case '1':
      (void)stack_.pop_to_mark();
      return;
    case '2':
      stack_.push_again();
      return;
    case 'p':
      stack_.put_memo(decimal_line());
      return;
    case 'q':
    case 'r':
      stack_.put_memo(opcode == 'q' ? in_.u8() : little(4));
      return;
    case 0x94:  // MEMOIZE
      stack_.memoize();
      return;
    case 'g':
      stack_.get_memo(decimal_line());
      return;
    case 'h':
    case 'j':
      stack_.get_memo(opcode == 'h' ? in_.u8() : little(4));
      return;
    case 'c': {
      const std::string_view module = line(), text = line();
      stack_.push_text(Kind::kText, text);
      stack_.push_global(module, stack_.pop());
      return;
    }
    case 0x93: {  // STACK_GLOBAL
      const ValueId name = stack_.pop(), module = stack_.pop();
      if (stack_.ok()) stack_.push_global(stack_.value(module).text, name);
      return;
    }
    case 'R':     // REDUCE
    case 0x81:    // NEWOBJ
    case 0x92: {  // NEWOBJ_EX
      if (opcode == 0x92) (void)stack_.pop();
      const ValueId arguments = stack_.pop(), callable = stack_.pop();
      if (stack_.ok()) stack_.call(callable, arguments);
      return;
    }
    case 'i': {  // INST
      const std::string_view module = line(), text = line();
      stack_.push_items(Kind::kTuple, stack_.pop_to_mark());
      const ValueId arguments = stack_.pop();
      stack_.push_text(Kind::kText, text);
      stack_.push_global(module, stack_.pop());
      const ValueId callable = stack_.pop();
      if (stack_.ok()) stack_.call(callable, arguments);
      return;
    }
    case 'o': {  // OBJ
      std::vector<ValueId> items = stack_.pop_to_mark();
      stack_.require(!items.empty());
      if (!stack_.ok()) return;
      const ValueId callable = items.front();
      items.erase(items.begin());
      stack_.push_items(Kind::kTuple, std::move(items));
      const ValueId arguments = stack_.pop();
      if (stack_.ok()) stack_.call(callable, arguments);
      return;
    }
    case 'b': {  // BUILD
      const ValueId state = stack_.pop(), object = stack_.top();
      if (stack_.ok()) stack_.value(object).state = state;
      return;
    }
    case 'P':
      stack_.push_text(Kind::kText, line());
      stack_.push_items(Kind::kPersistent, {stack_.pop()});
      return;
    case 'Q': {
      const ValueId id = stack_.pop();
      if (stack_.ok()) stack_.push_items(Kind::kPersistent, {id});
      return;
    }
    default:  // registered extensions and buffers outside of the pickle among them
      stack_.require(false);
      return;
  }
}

}  // namespace

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
