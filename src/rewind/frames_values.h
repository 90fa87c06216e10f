// How one value of the user's program is remembered: firmly where that prolongs nothing that matters,
// otherwise by weak reference, so that a snapshot keeps no graph and nothing large alive. What has died by then is made
// again of the parts that were firmly kept.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pyhost/object_python.h"

namespace finitude::bindings {

enum class TypeClass : std::uint8_t {
  kPlain,     // immutable and free of references: numbers, text, types, modules, code
  kFunction,  // plain unless it closes over values or has defaults
  kBuiltin,   // plain unless it is bound to an object
  kTensor,
  kWeak,       // anything else that can be referenced weakly
  kContainer,  // cannot; what it holds decides
  kOpaque,     // cannot, and may hold anything (an exception, a capsule): trusted only where it is unchanged
};

struct TypeInfo {
  TypeClass value = TypeClass::kOpaque;
  bool generator = false;   // generators and coroutines
  bool external = false;    // an iterator whose position the caller handles
  bool iterates = false;    // has a next
  bool stream = false;      // of random numbers: torch's, numpy's and Python's generators of them
  std::int8_t layout = -1;  // iterators of known layout: index into the layout table
};

enum class Held : std::uint8_t {
  kUnbound,  // there was no value
  kStrong,
  kWeak,
  kWitness,   // a container that holds a weakly kept tensor: known again by address, size and that tensor
  kIterator,  // its iterator record knows
  kInPlace,   // nothing is held; it stays if an object of that type is still at that address
  kNothing,   // cannot be brought back
};

// What an equal of a dead value is made of, where that is more than a few bits. To destroy it may run Python code.
class Substitute {
 public:
  virtual ~Substitute() = default;
  virtual Object make() const = 0;  // empty with an error
};

// What to give back once a weakly kept tensor has died: an equal of it, or how to make one, which costs a healthy step
// less. To destroy one may run Python code.
struct StandIn {
  mutable Object object;
  std::unique_ptr<Substitute> substitute;
  Object (*make)(const StandIn& of) = nullptr;  // empty with an error
  std::uint64_t bits[2] = {};                   // the rest is for `make`
  std::int32_t dtype = 0, dims = 0;

  bool empty() const { return !object && substitute == nullptr && make == nullptr; }
  PyObject* get() const;  // borrowed; null where none can be made
};

struct Value {
  PyObject* object = nullptr;  // its address; not a reference
  Object ref;                  // the object, or a weak reference to it or to the witness
  StandIn stand_in;
  std::uint64_t marks = 0;     // kWitness: hash of the addresses it held; kInPlace: address of the type
  Py_ssize_t size = -1;        // containers: number of elements when looked into
  std::uint64_t contents = 0;  // containers: which elements these were; 0: not known
  std::int32_t iterator = -1;  // index of the iterator record, -1 none
  Held held = Held::kUnbound;
  std::uint8_t age = 0;  // takes since the container was last looked into
};

// What need not be looked into again while it still stands where it stood: one cache line instead of the object's, its
// type's and its Value's. Between two steps the caches are the model's, and every line costs a trip to memory.
struct Settled {
  PyObject* object = nullptr;  // its address; not a reference
  PyObject* proof = nullptr;   // the object where it is held, else its weak reference; null: look again. Borrowed.

  bool still(PyObject* now) const;
};
// Of a value as just remembered. Iterators move, containers and tensors change: those are never settled.
Settled settled(const Value& value);

// Asked for every tensor and every object that could be kept weakly: may the snapshot keep it alive? Must not run
// Python code.
using KeepStrong = bool (*)(PyObject* object, void* context);

// Asked for every tensor kept weakly: fills in a cheap equal that keeps nothing large alive, or leaves `out` as it is.
using MakeStandIn = void (*)(PyObject* tensor, void* context, StandIn* out);

// Known types, looked up by address. `layout_of` and the external list are set once at start.
struct TypeRules {
  PyTypeObject* tensor = nullptr;
  std::vector<PyTypeObject*> external;
  std::vector<PyTypeObject*> layouts;  // by index: the iterator type with that layout
};
void set_type_rules(const TypeRules& rules);
// Lets go of the classes that were met; what is met again is looked at again. Needs the GIL.
void forget_types();
TypeInfo type_info(PyTypeObject* type);
bool is_tensor(PyObject* object);

// Has a stream of random numbers come to stand where a snapshot looks, since the last time this was asked?
bool stream_met();

// Fills and empties values during one take. References it lets go of are dropped by flush() only: dropping
// one may run the user's code, which must not happen while a stack is being read.
class Keeper {
 public:
  KeepStrong keep_strong = nullptr;
  MakeStandIn make_stand_in = nullptr;
  void* context = nullptr;
  bool keep_all = false;  // holds whatever it is given

  void keep(PyObject* object, Value* value);
  // Would keep() find what it found the last time? Looks at the object's own memory only, not at what it holds.
  static bool unchanged(PyObject* object, Value* value);
  void forget(Value* value);
  void discard(Object owned) {
    if (owned) dropped_.push_back(std::move(owned));
  }
  void discard(StandIn owned) {
    if (!owned.empty()) dropped_stand_ins_.push_back(std::move(owned));
  }
  void flush();

 private:
  void keep_new(PyObject* object, Value* value);
  bool look_into(PyObject* object, Value* value);
  bool stand_in_for(PyObject* object, int depth, StandIn* out) const;
  bool stand_in_for_all(PyObject* container, int depth, StandIn* out) const;
  bool value_may_stay(PyObject* object) const { return keep_strong != nullptr && keep_strong(object, context); }

  std::vector<Object> dropped_;
  std::vector<StandIn> dropped_stand_ins_;
};

// The remembered object, borrowed, or null when it is gone. `live` is what stands in its place now: a
// container that could not be referenced is recognised only there.
PyObject* recall(const Value& value, PyObject* live);

// A list as long as it was: what was added to it is added again. Of a comprehension's, which lies nowhere but on the
// stack, just below its iterator; one below something else is the program's, and about to have a method called.
void shorten(PyObject* list, Py_ssize_t size);

}  // namespace finitude::bindings
