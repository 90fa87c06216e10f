// What a snapshot remembers of frames, of iterators, and of the generators inside them; how it is compared
// with the present and how it is put back. The GIL is held and the garbage collector off.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pyhost/frames_code.h"
#include "pyhost/python_compat.h"
#include "rewind/frames_layouts.h"
#include "rewind/frames_values.h"

namespace finitude::bindings {

struct NamedValue {
  Object name;
  Settled settled;
  Value value;
};

// A with statement's bound __exit__ on the value stack.
struct ExitMark {
  std::size_t slot = 0;
  const void* function = nullptr;
  PyObject* manager = nullptr;  // addresses, not references
  PyTypeObject* type = nullptr;
};

struct FrameState {
  CodeInfo* info = nullptr;
  int unit = 0;  // code unit that was being executed
  int blocks = 0;
  bool user = false;              // only these keep names and stack
  bool waits_in_python = false;   // the call that it waits in is one of Python code by Python code
  int return_offset = 0;          // of that call
  std::uint64_t fingerprint = 0;  // of a library frame whose call sits in a loop; 0: not in a loop
  PyObject* dict = nullptr;       // address of the dict that holds the names, where it is not fast slots
  std::vector<Value> fast, stack;
  std::vector<Settled> settled;     // of `fast`
  std::vector<std::uint8_t> cells;  // which of `fast` may stand in a cell
  std::vector<NamedValue> names;
  std::uint64_t names_version = 0;       // of that dict when all of it was remembered; 0: never
  std::vector<std::uint32_t> unsettled;  // among names, what has to be looked at though the dict has not changed
  std::vector<ExitMark> exits;
  std::vector<Object> handed;   // iterators given to C code that waits in a call of one of their values
  std::uint64_t handed_at = 0;  // their position; 0: there are none, or it is not known
};

// One iterator; the ones it draws from follow it in the list, up to `end`.
struct IteratorRecord {
  enum class Kind : std::uint8_t { kFields, kGenerator, kRunning, kExternal } kind = Kind::kFields;
  std::int8_t layout = -1;
  bool strong = false;
  PyObject* object = nullptr;           // address
  Object ref;                           // the iterator when strong, or a weak reference to it, or empty
  std::int64_t words[kMaxFields] = {};  // positions, by field; for an inner iterator 1 where there was one
  Object objects[kMaxFields];           // positions that are Python integers
  Value source;                         // what it runs over
  std::uint64_t source_shape = 0;
  int end = 0;
  FrameState* state = nullptr;  // of a suspended generator
};

// A generator in a local name that draws from what cannot be set back: harmless while it does not advance.
struct Doubt {
  Object weak;
  std::uint64_t position = 0;
  std::string why;
};

class FrameMemory {
 public:
  Keeper keeper;

  // ---- taking ----
  void begin();   // of a new snapshot; drops nothing yet
  void finish();  // lets go of what the new snapshot does not hold
  bool remember(RawFrame* frame, FrameState* state, std::string* why);
  // Does this frame wait for C code that was given iterators and calls back for their values (list(map(train,
  // settings)))?
  static bool hands_iterators(RawFrame* frame, CodeInfo* info);
  void remember_handed(RawFrame* frame, FrameState* state);
  void forget(FrameState* state);
  void forget_all();

  // ---- comparing: would put() reproduce it? ----
  bool fits(const FrameState& state, RawFrame* frame, std::string* why) const;
  bool doubts_hold(std::string* why) const;
  // Is the C code that this frame waits for still at the same value? What it keeps of its own has not changed then.
  static bool handed_stand(const FrameState& state, RawFrame* frame);
  // Does this iterator hold nothing but its noted position while it runs Python code of its own?
  static bool hides_nothing(PyObject* iterator);

  // ---- putting back; only after fits(). Names that could not be brought back are added to `unset`. ----
  void put(const FrameState& state, RawFrame* frame, std::vector<std::string>* unset);

  // Draws a value, notes the position, draws another, goes back: does the same value come again, twice over?
  bool iterator_goes_back(PyObject* iterator);

 private:
  bool remember_value(PyObject* object, Value* value, bool on_stack, std::string* why);
  bool remember_names(PyObject* dict, FrameState* state, std::string* why);
  int remember_iterator(PyObject* object, std::string* why);
  bool remember_fields(PyObject* object, int index, std::string* why);
  bool remember_generator(PyObject* object, int index, std::string* why);
  bool iterator_fits(int index, PyObject* live, PyObject** target, std::string* why) const;
  bool fields_fit(int index, PyObject* target, std::string* why) const;
  bool stack_fits(const FrameState& state, RawFrame* frame, std::string* why) const;
  bool value_fits(const Value& value, PyObject* live, std::string* why) const;
  PyObject* iterator_target(const IteratorRecord& record, PyObject* live) const;
  void put_iterator(int index, PyObject* target);
  void put_fields(int index, PyObject* target);
  PyObject* put_value(const Value& value, PyObject* live, bool* lost);
  void put_names(const FrameState& state, PyObject* dict, std::vector<std::string>* unset);
  void put_slot(PyObject** slot, PyObject* object);
  FrameState* spare_state();
  void drop_record(IteratorRecord* record);

  std::vector<IteratorRecord> records_, old_records_;
  std::vector<std::unique_ptr<FrameState>> generator_states_;
  std::size_t generator_states_used_ = 0;
  std::vector<Doubt> doubts_;
  std::vector<std::pair<PyObject*, PyObject*>> managers_;  // while putting: old address, live manager
  int nesting_ = 0;
};

// Values of a frame's stack that outlive the call under way; -1 where it cannot be known.
int surviving_depth(RawFrame* frame, CodeInfo* info);
// Pointers of a frame's names and stack, mixed; only good for detecting that something moved.
std::uint64_t fingerprint(RawFrame* frame, CodeInfo* info);
// Which value an iterator gives next, as a number that is another one for another value; 0: that is not known.
std::uint64_t position_of(PyObject* iterator, int nesting = 0);
// "train.py:27"
std::string place(const CodeInfo& info, int unit);

// Sets the type rules; `layouts` is filled in with the iterator types that pass a trial on a small example.
void set_types(TypeRules rules);

}  // namespace finitude::bindings
