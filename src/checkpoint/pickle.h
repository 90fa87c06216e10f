// Reads a pickle without executing it: nothing that it names is looked up or called. What it would call is kept as a
// value that says so.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "finitude/status.h"

namespace finitude::checkpoint {

using ValueId = std::uint32_t;
inline constexpr ValueId kNoValue = 0;  // no id of a value: the first one is a placeholder

struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,        // number
    kInt,         // number
    kFloat,       // real
    kOther,       // an integer beyond 64 bits, which nothing here needs
    kText,        // text, which may be no UTF-8
    kBytes,       // text
    kTuple,       // items
    kList,        // items
    kSet,         // items
    kDict,        // items: keys and values by turns
    kGlobal,      // text: the module; items: its name, a text
    kObject,      // of a call: callable, arguments; items: what was put in, by turns where has_pairs
    kPersistent,  // items: the persistent id
  };
  Kind kind = Kind::kNone;
  bool has_pairs = false;
  std::int64_t number = 0;
  double real = 0;
  std::string_view text;  // in the bytes of the pickle
  std::vector<ValueId> items;
  ValueId callable = kNoValue, arguments = kNoValue;
  ValueId state = kNoValue;  // what __setstate__ would get, of an object or a dict
};

// The values of one pickle. They refer to each other by id, also in circles, and to the bytes of the pickle.
class Pickle {
 public:
  // Protocols 0 to 5. Reasons are worded to follow the name of the file.
  Status read(std::string_view bytes);

  ValueId root() const noexcept { return root_; }
  // An id from elsewhere than this pickle gives None.
  const PickleValue& at(ValueId id) const noexcept { return values_[id < values_.size() ? id : 0]; }
  // The n-th item, or None.
  const PickleValue& item(const PickleValue& of, std::size_t n) const noexcept {
    return at(n < of.items.size() ? of.items[n] : kNoValue);
  }
  // Is it this class or function?
  bool is_global(ValueId id, std::string_view module, std::string_view name) const noexcept;
  // Of a dict: the value under that text, or kNoValue.
  ValueId find(const PickleValue& dict, std::string_view key) const noexcept;

 private:
  friend class PickleStack;  // which adds values
  std::vector<PickleValue> values_ = std::vector<PickleValue>(1);
  ValueId root_ = kNoValue;
};

}  // namespace finitude::checkpoint
