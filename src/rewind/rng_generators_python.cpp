#include "rewind/rng_generators_python.h"

#include <cstring>

#include "base/immortal.h"
#include "pyhost/attributes_python.h"
#include "pyhost/object_python.h"
#include "pyhost/saved_error_python.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxBytes = 16384;  // of one stream; a Mersenne Twister has 2.5 KB

struct Region {
  char* begin;
  std::size_t size_bytes;
};

// `regions` are addresses inside the object `of` and what it owns. They are valid only as long as `of` lives, hence the
// reference.
struct Stream {
  Object of;
  std::vector<Region> regions;
  std::size_t size_bytes;
  bool has_gauss;
};

base::Immortal<std::vector<Stream>> the_streams;
std::vector<Stream>& own_streams() { return *the_streams; }

PyObject* gauss_name() {
  static PyObject* const name = PyUnicode_InternFromString("gauss_next");
  return name;
}

// random.Random keeps the second of a pair of normal numbers in an attribute, outside of the memory of the generator.
std::optional<double> next_gauss(PyObject* random) {
  const SavedError saved;  // a snapshot may be taken while an exception is set
  const Object value = own_attribute(random, gauss_name());
  std::optional<double> found;
  if (value && PyFloat_Check(value.get())) found = PyFloat_AS_DOUBLE(value.get());
  return found;
}

void set_next_gauss(PyObject* random, const std::optional<double>& number) {
  if (next_gauss(random) == number) return;
  const SavedError saved;
  const Object value = number ? Object::take(PyFloat_FromDouble(*number)) : Object::share(Py_None);
  if (!value || PyObject_SetAttr(random, gauss_name(), value.get()) != 0) PyErr_Clear();
}

// Checks sizes and addresses before anything is read: Python code found them by trial.
bool read_one(PyObject* item, Stream* out) {
  PyObject *of = nullptr, *regions = nullptr;
  int has_gauss = 0;
  if (!PyArg_ParseTuple(item, "OO!p", &of, &PyTuple_Type, &regions, &has_gauss)) return false;
  out->size_bytes = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(regions); ++i) {
    unsigned long long address = 0, size_bytes = 0;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(regions, i), "KK", &address, &size_bytes)) return false;
    out->size_bytes += size_bytes;
    if (address == 0 || size_bytes > kMaxBytes || out->size_bytes > kMaxBytes) {
      PyErr_SetString(PyExc_ValueError, "a stream's state is of another size");
      return false;
    }
    out->regions.push_back({reinterpret_cast<char*>(address), static_cast<std::size_t>(size_bytes)});
  }
  out->of = Object::share(of);
  out->has_gauss = has_gauss != 0;
  return true;
}

}  // namespace

bool watch_streams(PyObject* list) {
  std::vector<Stream> found;
  const Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
  bool good = count >= 0;
  if (!good) PyErr_SetString(PyExc_TypeError, "a list of streams is expected");
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    Stream one;
    good = read_one(PyList_GET_ITEM(list, i), &one);
    if (good) found.push_back(std::move(one));
  }
  // The old streams are dropped on return: a destructor may run code that draws numbers.
  if (good) own_streams().swap(found);
  return good;
}

void take_streams(std::vector<StreamState>* states) noexcept {
  try {
    const std::vector<Stream>& all = own_streams();
    states->resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      StreamState& state = (*states)[i];
      state.of = all[i].of.get();
      state.bytes.resize(all[i].size_bytes);
      std::size_t at = 0;
      for (const Region& region : all[i].regions) {
        std::memcpy(state.bytes.data() + at, region.begin, region.size_bytes);
        at += region.size_bytes;
      }
      if (all[i].has_gauss) state.next_gauss = next_gauss(all[i].of.get());
    }
  } catch (...) {  // no memory: without them the second run draws other numbers, which shows
    states->clear();
  }
}

void restore_streams(const std::vector<StreamState>& states) noexcept {
  for (const Stream& stream : own_streams()) {
    // By address: the list may have changed since the state was taken, and the state of one stream is no state of
    // another.
    for (const StreamState& state : states) {
      if (state.of != stream.of.get() || state.bytes.size() != stream.size_bytes) continue;
      std::size_t at = 0;
      for (const Region& region : stream.regions) {
        std::memcpy(region.begin, state.bytes.data() + at, region.size_bytes);
        at += region.size_bytes;
      }
      if (stream.has_gauss) set_next_gauss(stream.of.get(), state.next_gauss);
    }
  }
}

}  // namespace finitude::bindings
