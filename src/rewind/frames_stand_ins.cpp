// Stand-ins: what takes the place of a value that has died before the rewind. They are recipes, made into objects only
// where a rewind needs the value. The parts are plain objects, which are held, or small copies of tensors.
#include <memory>
#include <utility>

#include "rewind/frames_values.h"

namespace finitude::bindings {
namespace {

constexpr Py_ssize_t kMostParts = 16;  // of a container that is made again
constexpr int kDeepestParts = 2;

// A tuple, list or dict with equals of what the dead one held. Its destructor belongs into Keeper::flush(). Where
// stand_in_for_all() gives up half way, all parts still have other owners.
class Rebuilt final : public Substitute {
 public:
  explicit Rebuilt(PyTypeObject* type) : type_(type) {}
  StandIn* add(PyObject* key) {
    if (key != nullptr) keys_.push_back(Object::share(key));
    return &parts_.emplace_back();
  }
  // Parts are shared with the object: StandIn::get() makes each of them once.
  Object make() const override {
    const auto count = static_cast<Py_ssize_t>(parts_.size());
    Object made = Object::take(type_ == &PyDict_Type   ? PyDict_New()
                               : type_ == &PyList_Type ? PyList_New(count)
                                                       : PyTuple_New(count));
    for (Py_ssize_t i = 0; made && i < count; ++i) {
      Object part = Object::share(parts_[static_cast<std::size_t>(i)].get());
      if (!part) return Object();
      if (type_ == &PyList_Type)
        PyList_SET_ITEM(made.get(), i, part.release());
      else if (type_ == &PyTuple_Type)
        PyTuple_SET_ITEM(made.get(), i, part.release());
      else if (PyDict_SetItem(made.get(), keys_[static_cast<std::size_t>(i)].get(), part.get()) != 0)
        return Object();
    }
    return made;
  }

 private:
  PyTypeObject* type_;
  std::vector<StandIn> parts_;
  std::vector<Object> keys_;
};

}  // namespace

// False where no equal can be made: functions and objects of the program have an identity that a copy would lose.
bool Keeper::stand_in_for(PyObject* object, int depth, StandIn* out) const {
  switch (type_info(Py_TYPE(object)).value) {
    case TypeClass::kPlain:
      out->object = Object::share(object);
      return true;
    case TypeClass::kTensor:
      if (value_may_stay(object))
        out->object = Object::share(object);
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
  out->substitute = std::move(made);
  return true;
}

// Made at most once. The result stays in `object`, which owns it; callers get a borrowed reference.
PyObject* StandIn::get() const {
  if (!object && (substitute != nullptr || make != nullptr)) {
    object = substitute != nullptr ? substitute->make() : make(*this);
    if (!object) PyErr_Clear();
  }
  return object.get();
}

}  // namespace finitude::bindings
