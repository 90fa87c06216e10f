// Which iterators of this interpreter go back: the trial that every layout has to pass.
#include <vector>

#include "pyhost/object_python.h"
#include "rewind/frames_layouts.h"
#include "rewind/frames_memory.h"

namespace finitude::bindings {

// The trial: a private field may have moved in a version that the table does not know. A wrong position gives another
// value, or none. One value is drawn first, as some iterators take their final form with it. Values are compared with
// ==, since an iterator may make a new object each time. Runs at start only: it may run Python code.
bool FrameMemory::iterator_goes_back(PyObject* iterator) {
  std::string why;
  bool good = static_cast<bool>(Object::take(PyIter_Next(iterator)));
  for (int round = 0; good && round < 2; ++round) {
    begin();
    const int index = remember_iterator(iterator, &why);
    const Object before = index >= 0 ? Object::take(PyIter_Next(iterator)) : Object();
    PyObject* target = nullptr;
    Object after;
    if (before && iterator_fits(index, iterator, &target, &why)) {
      put_iterator(index, target);
      after = Object::take(PyIter_Next(iterator));
    }
    good = before && after && PyObject_RichCompareBool(before.get(), after.get(), Py_EQ) == 1;
    finish();
  }
  forget_all();
  PyErr_Clear();
  return good;
}

// Called at the start, with the GIL held and no stack being read: it runs Python code and imports itertools. Without
// memory or itertools no layout is trusted, and for loops over CPython's own iterators are not rewound.
void set_types(TypeRules rules) {
  const Object held_names = Object::take(PyDict_New()), itertools = Object::take(PyImport_ImportModule("itertools"));
  PyObject* const names = held_names.get();
  std::vector<Object> samples(kLayoutCount);
  rules.layouts.assign(kLayoutCount, nullptr);
  if (names != nullptr && itertools && PyDict_SetItemString(names, "itertools", itertools.get()) == 0 &&
      PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0) {
    Object::take(PyRun_String(
        "class Sequence:\n    def __getitem__(self, index):\n        if index > 4: raise IndexError\n        "
        "return index\n",
        Py_file_input, names, names));
    for (int i = 0; i < kLayoutCount; ++i) {
      samples[i] = Object::take(PyRun_String(kLayouts[i].sample, Py_eval_input, names, names));
      if (!samples[i])
        PyErr_Clear();
      else if (size_fits(Py_TYPE(samples[i].get()), kLayouts[i].fields))
        rules.layouts[i] = Py_TYPE(samples[i].get());
    }
    // All are on trial together, since one draws from another; those that fail are then struck off.
    set_type_rules(rules);
    for (int i = 0; i < kLayoutCount; ++i) {
      FrameMemory memory;
      if (rules.layouts[i] != nullptr && !memory.iterator_goes_back(samples[i].get())) rules.layouts[i] = nullptr;
    }
  }
  PyErr_Clear();
  set_type_rules(rules);  // which holds the types of the samples
}

}  // namespace finitude::bindings
