// Of which samples of its data set a DataLoader made a batch. Iterators with workers ask for several ahead and give
// them later. With the GIL held; an error that is set goes.
#pragma once

#include <Python.h>

#include <cstdint>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// The iterator has drawn these indices for a batch. May throw std::bad_alloc.
void keep_indices(PyObject* iterator, PyObject* index);

// Of the batch that the iterator has just given. Empty: not known. *worker: that made it; -1: this process, or not
// known.
Object take_indices(PyObject* iterator, std::int32_t* worker);

}  // namespace finitude::bindings
