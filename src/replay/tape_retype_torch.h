// A step computed in another floating dtype than it was recorded in. Memory is converted storage by storage,
// element by element, so that every view of it stays what it was.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <vector>

#include "capture/tape.h"

namespace finitude::replay {

class Retype {
 public:
  Retype(const capture::Tape& tape, c10::ScalarType target);

  // A floating dtype becomes the target, a complex one the complex dtype of the target; others stay. bfloat16 takes the
  // place of float16 only, as where autocast is reported so: what was float32 on purpose stays that.
  bool converts(c10::ScalarType recorded) const;
  c10::ScalarType of(c10::ScalarType recorded) const;
  // Integers stay as they are, and so does memory that is read as numbers of several formats.
  bool converts(capture::StorageId id) const { return units_.at(id) != c10::ScalarType::Undefined; }
  c10::Storage converted(capture::StorageId id, const c10::Storage& recorded) const;
  std::size_t converted_bytes(capture::StorageId id, std::size_t recorded_bytes) const;
  void fill(capture::StorageId id, c10::Storage& into, std::uint64_t offset, const std::string& bytes) const;

  // For a call that has to be computed in the dtypes it was recorded in: memory of these dtypes, made of the
  // converted one. What the call changed in it goes back at the end.
  c10::Storage shadow(capture::StorageId id, const c10::Storage& now);
  bool is_shadow(capture::StorageId id) const { return shadows_.contains(id); }
  void end_shadows(std::vector<c10::Storage>& storages);

 private:
  struct Shadow {
    c10::Storage storage;
    std::uint64_t sum = 0;
  };
  c10::ScalarType target_;
  std::vector<c10::ScalarType> units_;  // by storage: dtype of its real numbers; Undefined: it stays
  std::map<capture::StorageId, Shadow> shadows_;
};

// Arguments whose integer is the number of a dtype.
bool is_dtype(const c10::Argument& argument);

// Throws where the argument is a dtype, a layout or a memory format, and the number is none of these: kernels index
// tables with it.
void check_enumeration(const c10::Argument& argument, std::int64_t number);

}  // namespace finitude::replay
