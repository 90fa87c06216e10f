#include "rewind/loader_datasets_python.h"

#include <cstring>
#include <string_view>

#include "base/immortal.h"
#include "pyhost/attributes_python.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMostDatasets = 64, kMostIterators = 16;

struct IteratorPlace {
  const PyObject* iterator = nullptr;  // not held: it is only compared
  BatchPlace place;
};

struct DatasetLog {
  std::vector<Dataset> datasets;
  std::vector<IteratorPlace> iterators;  // the newest last
};

base::Immortal<DatasetLog> the_dataset_log;

Object attribute_of(PyObject* object, const char* text) {
  const Object name = Object::take(PyUnicode_InternFromString(text));
  return name ? own_attribute(object, name.get()) : Object();
}

// A data set may open its files when it is asked: only where torch's sampler asks it as well, in this process.
std::int64_t length_of(PyObject* loader, PyObject* dataset) {
  const Object sampler = attribute_of(loader, "sampler");
  if (!sampler) return -1;
  const bool is_asked = attribute_of(sampler.get(), "data_source").get() == dataset ||
                        attribute_of(sampler.get(), "dataset").get() == dataset;
  const Py_ssize_t length = is_asked ? PyObject_Size(dataset) : -1;
  PyErr_Clear();
  return length;
}

// A loader of accelerate gives a batch when it has fetched the next one.
bool is_asked_ahead() {
  PyFrameObject* const frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  const Object code = Object::take(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const Object name = attribute_of(code.get(), "co_filename");
  const char* const text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
  PyErr_Clear();
  return text != nullptr && std::string_view(text).ends_with("accelerate/data_loader.py");
}

std::uint32_t number_of(PyObject* loader, PyObject* dataset) {
  auto& all = (*the_dataset_log).datasets;
  const PyTypeObject* const type = Py_TYPE(dataset);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].address == dataset && all[i].type == type) return static_cast<std::uint32_t>(i + 1);
  }
  if (all.size() >= kMostDatasets) return 0;
  const char* const dot = std::strrchr(type->tp_name, '.');
  all.push_back({dataset, type, dot != nullptr ? dot + 1 : type->tp_name, length_of(loader, dataset)});
  return static_cast<std::uint32_t>(all.size());
}

}  // namespace

void note_dataset(PyObject* loader, PyObject* iterator) {
  auto& iterators = (*the_dataset_log).iterators;
  std::erase_if(iterators, [&](const IteratorPlace& one) { return one.iterator == iterator; });
  const Object dataset = attribute_of(loader, "dataset"), kind = attribute_of(loader, "_dataset_kind");
  // _DatasetKind.Map is 0; an IterableDataset has no indices.
  if (!dataset || !kind || !PyLong_Check(kind.get()) || PyLong_AsLong(kind.get()) != 0) return;
  const std::uint32_t number = number_of(loader, dataset.get());
  if (number == 0) return;
  if (iterators.size() >= kMostIterators) iterators.erase(iterators.begin());
  const std::uint32_t epoch = (*the_dataset_log).datasets[number - 1].epochs++;
  iterators.push_back({iterator, {.dataset = number, .epoch = epoch, .is_ahead = is_asked_ahead()}});
}

BatchPlace place_of(const PyObject* iterator) noexcept {
  const auto& all = (*the_dataset_log).iterators;
  for (std::size_t i = all.size(); i-- > 0;) {
    if (all[i].iterator == iterator) return all[i].place;
  }
  return {};
}

const std::vector<Dataset>& known_datasets() noexcept { return (*the_dataset_log).datasets; }

}  // namespace finitude::bindings
