// Which data sets loaders are of. They are numbered from 1 as their loaders are iterated. With the GIL held; no error
// is left.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace finitude::bindings {

// Which data set a batch is of.
struct BatchPlace {
  std::uint32_t dataset = 0;  // 0: not known
  std::uint32_t epoch = 0;    // how often a loader of that data set was iterated before
  std::int32_t worker = -1;   // that made it; -1: this process, or not known
  bool is_ahead = false;      // it is fetched one batch before it is used
};

struct Dataset {
  const PyObject* address = nullptr;  // not held: it is only compared
  const PyTypeObject* type = nullptr;
  std::string class_name;
  std::int64_t length = -1;  // negative: not known
  std::uint32_t epochs = 0;  // how often a loader of it was iterated
};

// The loader was iterated: that is its iterator. One call for each epoch.
void note_dataset(PyObject* loader, PyObject* iterator);
// Of a batch that the iterator gives, without its worker.
BatchPlace place_of(const PyObject* iterator) noexcept;
// Number n is at n - 1.
const std::vector<Dataset>& known_datasets() noexcept;

}  // namespace finitude::bindings
