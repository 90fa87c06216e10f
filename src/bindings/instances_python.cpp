#include "bindings/instances_python.h"

#include <Python.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pyhost/python_compat.h"

namespace py = pybind11;

namespace finitude::bindings {
namespace {

// By the order of inheritance alone: isinstance would ask an object's __class__, and issubclass a metaclass, which may
// run code.
bool is_any_of(PyTypeObject* type, const py::tuple& classes) {
  for (const py::handle wanted : classes) {
    if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(wanted.ptr())) != 0) return true;
  }
  return false;
}

// Calls `found` for every object of `classes` among those that the collector tracks, of one generation or (-1) all.
// A program that has imported torch holds some 300,000 objects of a thousand classes: each class is judged once.
template <typename Found>
void for_each(const py::tuple& classes, int generation, const Found& found) {
  const py::object get = py::module_::import("gc").attr("get_objects");
  const py::list all = generation < 0 ? get() : get(py::arg("generation") = generation);
  std::unordered_map<PyTypeObject*, bool> judged;
  PyTypeObject* last = nullptr;
  bool last_is = false;
  const Py_ssize_t size = PyList_GET_SIZE(all.ptr());
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const object = PyList_GET_ITEM(all.ptr(), i);
    PyTypeObject* const type = Py_TYPE(object);
    if (type != last) {
      const auto [known, is_new] = judged.try_emplace(type, false);
      if (is_new) known->second = is_any_of(type, classes);
      last = type;
      last_is = known->second;
    }
    if (last_is) found(object);
  }
}

// What the last look at everything found, as weak references. Until the collector next moves objects to its oldest
// generation, all that came since is in the young ones, which hold some thousand objects: a program that makes hundreds
// of optimizers is looked at as a whole once, not hundreds of times.
struct LastLook {
  py::object classes;
  py::object collections;         // of all but the youngest generation, by then
  std::vector<py::object> known;  // weak references
};

void remember(PyObject* object, LastLook* last, py::list* found) {
  PyObject* const weak = PyWeakref_NewRef(object, nullptr);
  if (weak == nullptr) throw py::error_already_set();
  last->known.push_back(py::reinterpret_steal<py::object>(weak));
  found->append(py::reinterpret_borrow<py::object>(object));
}

py::object collections_so_far() {
  const py::list stats = py::module_::import("gc").attr("get_stats")();
  py::list counts;
  for (std::size_t i = 1; i < stats.size(); ++i) counts.append(stats[i]["collections"]);
  return py::tuple(counts);
}

py::list instances(const py::tuple& classes) {
  for (const py::handle wanted : classes) {
    if (!PyType_Check(wanted.ptr())) throw py::type_error("instances() takes a tuple of classes");
  }
  py::list found;
  for_each(classes, -1, [&](PyObject* object) { found.append(py::reinterpret_borrow<py::object>(object)); });
  return found;
}

// What is young, added to what was known; false where the collector has moved something meanwhile.
bool look_at_the_young(const py::tuple& classes, LastLook* last, py::list* found) {
  std::unordered_set<PyObject*> there;
  std::erase_if(last->known, [&](const py::object& weak) {
    PyObject* const object = weak_object(weak.ptr());
    if (object == nullptr) return true;
    there.insert(object);
    found->append(py::reinterpret_borrow<py::object>(object));
    return false;
  });
  for (const int generation : {0, 1}) {
    for_each(classes, generation, [&](PyObject* object) {
      if (there.insert(object).second) remember(object, last, found);
    });
  }
  return last->collections.equal(collections_so_far());
}

py::list instances_again(const py::tuple& classes) {
  static auto* const last = new LastLook;  // leaked: the interpreter may have gone when statics are destroyed
  py::list found;
  if (last->classes && last->classes.is(classes) && last->collections.equal(collections_so_far()) &&
      look_at_the_young(classes, last, &found))
    return found;
  found = py::list();
  last->classes = py::none();  // should it fail halfway
  last->known.clear();
  last->collections = collections_so_far();
  for_each(classes, -1, [&](PyObject* object) { remember(object, last, &found); });
  last->classes = classes;
  return found;
}

// A value is compared by its address alone, without a reference to it: in a forked process each reference counted
// copies a page, and the namespaces of torch hold some 100,000 objects. The list is made afterwards, since that may run
// the collector.
py::list holders(const py::tuple& wanted) {
  std::unordered_set<PyObject*> known;
  for (const py::handle one : wanted) known.insert(one.ptr());
  std::vector<py::object> found;  // module, name and value of each
  PyObject *key = nullptr, *module = nullptr, *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(PyImport_GetModuleDict(), &at, &key, &module) != 0;) {
    PyObject* const space = PyModule_Check(module) != 0 ? PyModule_GetDict(module) : nullptr;
    for (Py_ssize_t in = 0; space != nullptr && PyDict_Next(space, &in, &name, &value) != 0;) {
      if (!known.contains(value)) continue;
      for (PyObject* one : {module, name, value}) found.push_back(py::reinterpret_borrow<py::object>(one));
    }
  }
  py::list out;
  for (std::size_t i = 0; i < found.size(); i += 3) out.append(py::make_tuple(found[i], found[i + 1], found[i + 2]));
  return out;
}

}  // namespace

void define_instances(py::module_& m) {
  m.def("instances", &instances, py::arg("classes"),
        "Every object of one of `classes`, or a class derived from it, that the garbage collector tracks; by "
        "inheritance alone: runs no "
        "code of theirs.");
  m.def("instances_again", &instances_again, py::arg("classes"),
        "The same, for a tuple that is asked about again and again, of classes that can be referenced weakly: quick as "
        "long as the collector "
        "has not looked through more than its youngest objects since.");
  m.def("holders", &holders, py::arg("objects"),
        "[(module, name, object)] of every name in an imported module that is bound to one of `objects`; runs no "
        "code of theirs.");
}

}  // namespace finitude::bindings
