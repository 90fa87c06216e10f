// Stand-ins: what takes the place of a value that has died before the rewind. They are recipes, made into objects only
// where a rewind needs the value. The parts are plain objects, which are held, or small copies of tensors.
#include <memory>
#include <utility>

#include "rewind/frames_values.h"

namespace finitude::bindings {
namespace {

constexpr Py_ssize_t kMostParts = 16;  // of a container that is made again
constexpr int kDeepestParts = 2;

// A tuple, list or dict with equals of what the dead one held. Owns its parts and keys. Its destructor may run Python
// code and belongs into Keeper::flush(). Where stand_in_for_all() gives up half way, all parts still have other owners.
class Rebuilt final : public Substitute {
 public:
  explicit Rebuilt(PyTypeObject* type) : type_(type) {}
  ~Rebuilt() override {
    for (StandIn& part : parts_) part.drop();
    for (PyObject* key : keys_) Py_DECREF(key);
  }
  StandIn* add(PyObject* key) {
    if (key != nullptr) keys_.push_back(Py_NewRef(key));
    return &parts_.emplace_back();
  }
  // A new reference, or null with an error. Parts are shared with the object: StandIn::get() makes each of them once.
  PyObject* make() const override {
    const auto count = static_cast<Py_ssize_t>(parts_.size());
    PyObject* made = type_ == &PyDict_Type   ? PyDict_New()
                     : type_ == &PyList_Type ? PyList_New(count)
                                             : PyTuple_New(count);
    for (Py_ssize_t i = 0; made != nullptr && i < count; ++i) {
      PyObject* part = parts_[static_cast<std::size_t>(i)].get();
      if (part == nullptr ||
          (type_ == &PyDict_Type && PyDict_SetItem(made, keys_[static_cast<std::size_t>(i)], part) != 0)) {
        Py_CLEAR(made);
      } else if (type_ == &PyList_Type) {
        PyList_SET_ITEM(made, i, Py_NewRef(part));
      } else if (type_ == &PyTuple_Type) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(part));
      }
    }
    return made;
  }

 private:
  PyTypeObject* type_;
  std::vector<StandIn> parts_;
  std::vector<PyObject*> keys_;
};

}  // namespace

// False where no equal can be made: functions and objects of the program have an identity that a copy would lose.
bool Keeper::stand_in_for(PyObject* object, int depth, StandIn* out) const {
  switch (type_info(Py_TYPE(object)).value) {
    case TypeClass::kPlain:
      out->object = Py_NewRef(object);
      return true;
    case TypeClass::kTensor:
      if (value_may_stay(object))
        out->object = Py_NewRef(object);
      else
        make_stand_in(object, context, out);
      return !out->empty();
    case TypeClass::kContainer:
      return depth < kDeepestParts && stand_in_for_all(object, depth, out);
    default:
      return false;
  }
}

bool Keeper::stand_in_for_all(PyObject* container, int depth, StandIn* out) const {
  const bool known = PyTuple_CheckExact(container) || PyList_CheckExact(container) || PyDict_CheckExact(container);
  // Exact types only: an instance of a subclass may have further state.
  if (!known || PyObject_Size(container) > kMostParts) return false;
  auto made = std::make_unique<Rebuilt>(Py_TYPE(container));
  if (PyDict_CheckExact(container)) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(container, &position, &key, &value) != 0) {
      if (!PyUnicode_CheckExact(key) || !stand_in_for(value, depth + 1, made->add(key))) return false;
    }
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i) {
      if (!stand_in_for(PySequence_Fast_GET_ITEM(container, i), depth + 1, made->add(nullptr))) return false;
    }
  }
  out->substitute = made.release();
  return true;
}

// Made at most once. The result stays in `object`, which owns it; callers get a borrowed reference.
PyObject* StandIn::get() const {
  if (object == nullptr && (substitute != nullptr || make != nullptr)) {
    object = substitute != nullptr ? substitute->make() : make(*this);
    if (object == nullptr) PyErr_Clear();
  }
  return object;
}

void StandIn::drop() {
  // Emptied first: what the destructor runs may come back to this object.
  const StandIn owned = std::exchange(*this, {});
  Py_XDECREF(owned.object);
  delete owned.substitute;
}

}  // namespace finitude::bindings
