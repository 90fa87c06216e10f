// Type classes, and the bounded look into containers.
#include "rewind/frames_values.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/immortal.h"
#include "pyhost/python_compat.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxTypes = 16384;
constexpr int kMaxElements = 64;  // looked at in one container
constexpr int kMaxDepth = 2;
constexpr std::uint8_t kLookEvery = 8;  // takes: what an element of a container holds may have changed

// Open addressing over addresses of types: every value that has changed since the last step costs a look-up. The table
// holds the types, so that none is freed and its address used again.
struct TypeTable {
  std::vector<std::pair<Object, TypeInfo>> slots{1024};
  std::size_t used = 0;
  TypeRules rules;
};

base::Immortal<TypeTable> the_types;
TypeTable& types() { return *the_types; }

std::size_t slot_of(const TypeTable& t, PyTypeObject* type) {
  const std::size_t mask = t.slots.size() - 1;
  std::size_t i = (reinterpret_cast<std::uintptr_t>(type) >> 4) * 0x9e3779b97f4a7c15ull >> 20 & mask;
  const auto* const object = reinterpret_cast<PyObject*>(type);
  while (t.slots[i].first && t.slots[i].first.get() != object) i = (i + 1) & mask;
  return i;
}

// Exact types, as a subclass may have a dict with anything in it. Classes themselves count, whatever their metaclass.
bool is_plain_type(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type || type == &PyBool_Type ||
         type == &PyBytes_Type || type == &PyComplex_Type || type == Py_TYPE(Py_None) || type == &PyModule_Type ||
         type == &PyCode_Type || type == &PyRange_Type || type == Py_TYPE(Py_Ellipsis) ||
         PyType_IsSubtype(type, &PyType_Type);
}

// Does the class itself say how its instances are made, by a function of Python?
bool is_made_in_python(PyObject* new_of_class) {
  if (!PyObject_TypeCheck(new_of_class, &PyStaticMethod_Type)) return false;
  const Object function = Object::take(PyObject_GetAttrString(new_of_class, "__func__"));
  const bool made = function && PyFunction_Check(function.get());
  PyErr_Clear();
  return made;
}

// A class that is written in Python, and all that it is derived from, and has __slots__ only: pathlib.Path.
bool has_slots_only(PyTypeObject* type) {
  bool own_new = false;
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base) {
    if (base == nullptr || (base->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || base->tp_dictoffset != 0 ||
        base->tp_dict == nullptr)
      return false;
    PyObject* made = PyDict_GetItemString(base->tp_dict, "__new__");
    if (made != nullptr && !is_made_in_python(made)) return false;
    own_new = own_new || made != nullptr;
  }
  return own_new || type->tp_new == PyBaseObject_Type.tp_new;
}

// Types whose contents the garbage collector's walk shows in full; others may hide some behind C++ pointers.
bool is_container(PyTypeObject* type) {
  for (PyTypeObject* base : {&PyList_Type, &PyTuple_Type, &PyDict_Type, &PySet_Type, &PyFrozenSet_Type}) {
    if (PyType_IsSubtype(type, base)) return true;
  }
  if (type == &PySlice_Type || type == &PyDictKeys_Type || type == &PyDictValues_Type || type == &PyDictItems_Type ||
      type == &PyListIter_Type || type == &PyTupleIter_Type)
    return true;
  return has_slots_only(type);
}

bool is_stream(PyTypeObject* type) {
  for (; type != nullptr; type = type->tp_base) {
    const std::string_view name = type->tp_name;
    if (name == "torch._C.Generator" || name == "_random.Random" ||
        name.ends_with("numpy.random._generator.Generator") || name.ends_with("numpy.random.mtrand.RandomState"))
      return true;
  }
  return false;
}

bool met = false;  // with the GIL held

// The order of the tests matters. Frames, tracebacks and exceptions could be held, but lead to all values of their
// frames. A set takes weak references, but what it holds decides whether it may be kept.
TypeInfo classify(const TypeTable& t, PyTypeObject* type) {
  TypeInfo info;
  info.iterates = type_iterates(type);
  info.stream = is_stream(type);
  info.generator = type == &PyGen_Type || type == &PyCoro_Type;
  for (PyTypeObject* external : t.rules.external) info.external |= PyType_IsSubtype(type, external) != 0;
  for (std::size_t i = 0; i < t.rules.layouts.size(); ++i) {
    if (t.rules.layouts[i] == type) info.layout = static_cast<std::int8_t>(i);
  }
  if (t.rules.tensor != nullptr && PyType_IsSubtype(type, t.rules.tensor))
    info.value = TypeClass::kTensor;
  else if (is_plain_type(type))
    info.value = TypeClass::kPlain;
  else if (type == &PyFunction_Type)
    info.value = TypeClass::kFunction;
  else if (type == &PyCFunction_Type)
    info.value = TypeClass::kBuiltin;
  else if (type == &PyFrame_Type || type == &PyTraceBack_Type || type == &PyCell_Type || type == &PyCapsule_Type ||
           (type->tp_flags & Py_TPFLAGS_BASE_EXC_SUBCLASS) != 0)
    info.value = TypeClass::kOpaque;
  else if (type_has_weakrefs(type) && type != &PySet_Type && type != &PyFrozenSet_Type)
    info.value = TypeClass::kWeak;
  else if ((type->tp_flags & Py_TPFLAGS_HAVE_GC) == 0)
    info.value = TypeClass::kPlain;  // holds no other object
  else if (is_container(type))
    info.value = TypeClass::kContainer;
  else
    info.value = TypeClass::kOpaque;
  return info;
}

Py_ssize_t element_count(PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object);
  if (PyDict_Check(object)) return reinterpret_cast<PyDictObject*>(object)->ma_used;
  if (PyAnySet_Check(object)) return reinterpret_cast<PySetObject*>(object)->used;
  return 0;
}

// A number that changes when other elements are in the container; 0 where that cannot be known. A tuple never changes.
// Of a list the first elements are mixed by address; a dict has a version of its own.
std::uint64_t contents_of(PyObject* object) {
  if (PyDict_CheckExact(object)) return dict_version(object) | 1ull << 63;
  if (PyTuple_CheckExact(object)) return 1;
  if (!PyList_CheckExact(object)) return 0;
  std::uint64_t sum = 0xcbf29ce484222325ull;
  const Py_ssize_t count = std::min<Py_ssize_t>(PyList_GET_SIZE(object), kMaxElements);
  for (Py_ssize_t i = 0; i < count; ++i) {
    sum = (sum ^ reinterpret_cast<std::uintptr_t>(PyList_GET_ITEM(object, i))) * 0x100000001b3ull;
  }
  return sum | 1;
}

// A closure or a default argument may lead to a model or a graph, and would keep it alive.
bool function_is_plain(PyObject* object) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  return function->func_closure == nullptr && function->func_defaults == nullptr &&
         function->func_kwdefaults == nullptr;
}

bool builtin_is_plain(PyObject* object) {
  PyObject* self = PyCFunction_GET_SELF(object);
  return self == nullptr || PyModule_Check(self);
}

// One bounded walk over what an object refers to, by tp_traverse: it visits borrowed references in C and runs no Python
// code, unlike iteration. `marks` mixes the addresses of the direct elements, to know the container again.
struct Look {
  KeepStrong keep_strong;
  void* context;
  int left = kMaxElements;
  int depth = 0;
  std::uint64_t marks = 0xcbf29ce484222325ull;
  PyObject* witness = nullptr;  // the first tensor that must not be kept alive

  void into(PyObject* object) {
    if (Py_TYPE(object)->tp_traverse != nullptr) Py_TYPE(object)->tp_traverse(object, &Look::visit, this);
  }
  static int visit(PyObject* element, void* self) { return static_cast<Look*>(self)->see(element); }
  int see(PyObject* element) {
    if (element == nullptr) return 0;
    if (--left < 0) return 1;
    if (depth == 0) marks = (marks ^ reinterpret_cast<std::uintptr_t>(element)) * 0x100000001b3ull;
    switch (type_info(Py_TYPE(element)).value) {
      case TypeClass::kTensor:
        if (witness == nullptr && (keep_strong == nullptr || !keep_strong(element, context))) witness = element;
        break;
      case TypeClass::kContainer:
      case TypeClass::kWeak:
        // A type's own dictionary is not where a value lives.
        if (depth + 1 < kMaxDepth && !PyType_Check(element)) {
          ++depth;
          into(element);
          --depth;
        }
        break;
      default:
        break;
    }
    return 0;
  }
};

}  // namespace

void set_type_rules(const TypeRules& rules) {
  TypeTable& t = types();
  hold_for_good(rules.tensor);
  for (PyTypeObject* type : rules.external) hold_for_good(type);
  for (PyTypeObject* type : rules.layouts) hold_for_good(type);
  t.rules = rules;
  type_iterates(&PyLong_Type);  // its one-time set-up runs Python code: not while a stack is being read
  forget_types();
}

void forget_types() {
  TypeTable& t = types();
  // Dropped when the table is whole again: the last reference to a class may run code of the program's.
  std::vector<std::pair<Object, TypeInfo>> held(t.slots.size());
  held.swap(t.slots);
  t.used = 0;
}

namespace {

[[gnu::noinline]] TypeInfo first_look(TypeTable& t, PyTypeObject* type) {
  const TypeInfo info = classify(t, type);
  if (t.used >= kMaxTypes) return info;
  if ((t.used + 1) * 2 > t.slots.size()) {
    std::vector<std::pair<Object, TypeInfo>> old(t.slots.size() * 2);
    old.swap(t.slots);
    for (auto& entry : old) {
      if (entry.first) t.slots[slot_of(t, reinterpret_cast<PyTypeObject*>(entry.first.get()))] = std::move(entry);
    }
  }
  t.slots[slot_of(t, type)] = {Object::share(reinterpret_cast<PyObject*>(type)), info};
  ++t.used;
  return info;
}

}  // namespace

TypeInfo type_info(PyTypeObject* type) {
  TypeTable& t = types();
  const auto& [known, info] = t.slots[slot_of(t, type)];
  return known ? info : first_look(t, type);
}

bool stream_met() { return std::exchange(met, false); }

bool is_tensor(PyObject* object) { return type_info(Py_TYPE(object)).value == TypeClass::kTensor; }

bool Settled::still(PyObject* now) const {
  if (now != object || proof == nullptr) return false;
  return proof == object || proof == Py_None || weak_is(proof, object);
}

// Only what is held, or weakly referenced, can prove by an address alone that it is the same object.
Settled settled(const Value& value) {
  if (value.held == Held::kUnbound && value.iterator == -1) return {nullptr, Py_None};
  const bool is = value.iterator == -1 && value.size < 0 && (value.held == Held::kStrong || value.held == Held::kWeak);
  return {value.object, is ? value.ref.get() : nullptr};
}

void Keeper::keep(PyObject* object, Value* value) {
  if (!unchanged(object, value)) keep_new(object, value);
}

// After so many takes (kLookEvery) a container is looked into again, since an element may have changed without it.
bool Keeper::unchanged(PyObject* object, Value* value) {
  if (object == nullptr || value->object != object) return false;
  // The address alone proves nothing; a reference that is still alive does.
  switch (value->held) {
    case Held::kStrong:
      if (value->size < 0) return true;
      break;
    case Held::kWeak:
      return value->size < 0 && weak_is(value->ref.get(), object);
    case Held::kWitness:
      // Another container with the same witness may have this address now; what was made of the first is no equal of
      // it.
      if (weak_object(value->ref.get()) == nullptr || !value->stand_in.empty()) return false;
      break;
    case Held::kInPlace:
      return value->marks == reinterpret_cast<std::uintptr_t>(Py_TYPE(object));
    default:
      return false;
  }
  return value->contents != 0 && element_count(object) == value->size && contents_of(object) == value->contents &&
         ++value->age < kLookEvery;
}

void Keeper::forget(Value* value) {
  discard(std::move(value->ref));
  discard(std::move(value->stand_in));
  *value = Value{};
}

void Keeper::flush() {
  // One by one, as the lists may grow meanwhile.
  while (!dropped_.empty()) {
    const Object owned = std::move(dropped_.back());
    dropped_.pop_back();
  }
  while (!dropped_stand_ins_.empty()) {
    const StandIn owned = std::move(dropped_stand_ins_.back());
    dropped_stand_ins_.pop_back();
  }
}

void Keeper::keep_new(PyObject* object, Value* value) {
  // The old reference is queued below and not dropped here: it may be the last one, and its destructor the program's
  // code.
  Object before = std::move(value->ref);
  StandIn stood_in = std::move(value->stand_in);
  *value = Value{};
  value->object = object;
  if (object != nullptr) {
    value->held = Held::kNothing;
    bool strong = false, weak = false;
    const TypeInfo info = type_info(Py_TYPE(object));
    met = met || info.stream;
    if (keep_all) {
      strong = true;
      if (info.value == TypeClass::kContainer)
        value->size = element_count(object), value->contents = contents_of(object);
    } else {
      switch (info.value) {
        case TypeClass::kPlain:
          strong = true;
          break;
        case TypeClass::kFunction:
          strong = function_is_plain(object), weak = !strong;
          break;
        case TypeClass::kBuiltin:
          strong = builtin_is_plain(object), weak = !strong;
          break;
        case TypeClass::kTensor:
          value->size = 0;  // asked about again at every take: what a tensor is part of changes
          strong = value_may_stay(object), weak = !strong;
          if (weak && make_stand_in != nullptr) make_stand_in(object, context, &value->stand_in);
          break;
        case TypeClass::kWeak:
          strong = value_may_stay(object), weak = !strong;
          break;
        case TypeClass::kContainer:
          strong = look_into(object, value);
          break;
        case TypeClass::kOpaque:
          value->held = Held::kInPlace;
          value->marks = reinterpret_cast<std::uintptr_t>(Py_TYPE(object));
          break;
      }
    }
    if (strong) {
      value->ref = Object::share(object);
      value->held = Held::kStrong;
    } else if (weak) {
      value->ref = Object::take(PyWeakref_NewRef(object, nullptr));
      if (value->ref)
        value->held = Held::kWeak;
      else
        PyErr_Clear();
    }
  }
  discard(std::move(before));
  discard(std::move(stood_in));
}

// True when the container may be held. Otherwise it leads to a tensor that may not be kept alive. Then a weak reference
// to that tensor (the witness), the size and the marks identify the container in recall().
bool Keeper::look_into(PyObject* object, Value* value) {
  Look look{keep_strong, context};
  look.into(object);
  value->size = element_count(object);
  value->contents = contents_of(object);
  if (look.witness == nullptr) return true;
  value->ref = Object::take(PyWeakref_NewRef(look.witness, nullptr));
  if (!value->ref) {
    PyErr_Clear();
    return false;
  }
  value->held = Held::kWitness;
  value->marks = look.marks;
  // A list or dict with another owner may live on. A second one made from its parts would then exist next to it, and
  // the program would see writes to one of them only.
  if (make_stand_in != nullptr && (PyTuple_CheckExact(object) || Py_REFCNT(object) == 1)) {
    stand_in_for_all(object, 0, &value->stand_in);
  }
  return false;
}

namespace {

// The container that was looked into, if `live` is that object and holds what it held. A list may have got longer. Its
// elements are then visited from the last one down, as the tp_traverse of lists does, to come to the same marks.
PyObject* witnessed(const Value& value, PyObject* live) {
  if (weak_object(value.ref.get()) == nullptr || live == nullptr || live != value.object) return nullptr;
  const Py_ssize_t count = element_count(live);
  const bool longer = PyList_CheckExact(live) && count > value.size;
  if (type_info(Py_TYPE(live)).value != TypeClass::kContainer || (count != value.size && !longer)) return nullptr;
  // Everything counts as weak here: the same elements in the same order give the same marks.
  Look look{nullptr, nullptr};
  if (longer) {
    for (Py_ssize_t i = value.size; i-- > 0 && look.see(PyList_GET_ITEM(live, i)) == 0;) {
    }
  } else {
    look.into(live);
  }
  return look.marks == value.marks ? live : nullptr;
}

}  // namespace

PyObject* recall(const Value& value, PyObject* live) {
  switch (value.held) {
    case Held::kStrong:
      return value.ref.get();
    case Held::kWeak: {
      PyObject* object = weak_object(value.ref.get());
      return object != nullptr ? object : value.stand_in.get();
    }
    case Held::kWitness: {
      PyObject* object = witnessed(value, live);
      // A list or dict that is still in its place is the same object with other contents: nothing replaces it.
      return object != nullptr || (live == value.object && !PyTuple_CheckExact(live)) ? object : value.stand_in.get();
    }
    case Held::kInPlace:
      return live != nullptr && live == value.object && value.marks == reinterpret_cast<std::uintptr_t>(Py_TYPE(live))
                 ? live
                 : nullptr;
    default:
      return nullptr;
  }
}

void shorten(PyObject* list, Py_ssize_t size) {
  if (list == nullptr || !PyList_CheckExact(list) || size < 0 || PyList_GET_SIZE(list) <= size) return;
  if (PyList_SetSlice(list, size, PyList_GET_SIZE(list), nullptr) != 0) PyErr_Clear();
}

}  // namespace finitude::bindings
