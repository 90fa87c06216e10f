// Which iterators of this interpreter go back: the trial that every layout has to pass.
#include <vector>

#include "rewind/frames_layouts.h"
#include "rewind/frames_memory.h"

namespace finitude::bindings {

// The trial: a private field may have moved in a version that the table does not know. A wrong position gives another
// value, or none. One value is drawn first, as some iterators take their final form with it. Values are compared with
// ==, since an iterator may make a new object each time. Runs at start only: it may run Python code.
bool FrameMemory::iterator_goes_back(PyObject* iterator) {
  std::string why;
  PyObject* first = PyIter_Next(iterator);
  bool good = first != nullptr;
  Py_XDECREF(first);
  for (int round = 0; good && round < 2; ++round) {
    begin();
    const int index = remember_iterator(iterator, &why);
    PyObject* before = index >= 0 ? PyIter_Next(iterator) : nullptr;
    PyObject* target = nullptr;
    PyObject* after = nullptr;
    if (before != nullptr && iterator_fits(index, iterator, &target, &why)) {
      put_iterator(index, target);
      after = PyIter_Next(iterator);
    }
    good = before != nullptr && after != nullptr && PyObject_RichCompareBool(before, after, Py_EQ) == 1;
    Py_XDECREF(before);
    Py_XDECREF(after);
    finish();
  }
  forget_all();
  PyErr_Clear();
  return good;
}

// Called at the start, with the GIL held and no stack being read: it runs Python code and imports itertools. Without
// memory or itertools no layout is trusted, and for loops over CPython's own iterators are not rewound.
void set_types(TypeRules rules) {
  PyObject* names = PyDict_New();
  PyObject* itertools = PyImport_ImportModule("itertools");
  std::vector<PyObject*> samples(kLayoutCount, nullptr);
  rules.layouts.assign(kLayoutCount, nullptr);
  if (names != nullptr && itertools != nullptr && PyDict_SetItemString(names, "itertools", itertools) == 0 &&
      PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0) {
    PyObject* done = PyRun_String(
        "class Sequence:\n    def __getitem__(self, index):\n        if index > 4: raise IndexError\n        "
        "return index\n",
        Py_file_input, names, names);
    Py_XDECREF(done);
    for (int i = 0; i < kLayoutCount; ++i) {
      samples[i] = PyRun_String(kLayouts[i].sample, Py_eval_input, names, names);
      if (samples[i] == nullptr)
        PyErr_Clear();
      else if (size_fits(Py_TYPE(samples[i]), kLayouts[i].fields))
        rules.layouts[i] = Py_TYPE(samples[i]);
    }
    // All are on trial together, since one draws from another; those that fail are then struck off.
    set_type_rules(rules);
    for (int i = 0; i < kLayoutCount; ++i) {
      FrameMemory memory;
      if (rules.layouts[i] != nullptr && !memory.iterator_goes_back(samples[i])) rules.layouts[i] = nullptr;
    }
  }
  PyErr_Clear();
  set_type_rules(rules);
  // set_type_rules() has taken references of its own to the types of the samples.
  for (PyObject* sample : samples) Py_XDECREF(sample);
  Py_XDECREF(itertools);
  Py_XDECREF(names);
}

}  // namespace finitude::bindings
