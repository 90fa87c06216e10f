// The layouts, as Objects/*.c and Modules/itertoolsmodule.c of CPython 3.10 to 3.13 declare them. None is trusted by
// that: each has to pass a trial on its sample first (frames_trial.cpp).
#include "rewind/frames_layouts.h"

#include <algorithm>
#include <cstring>

#include "pyhost/python_compat.h"

namespace finitude::bindings {

// One row per type of iterator. `sample` is evaluated with `itertools` and a class `Sequence` in its names; it must
// give at least three values, and its own iterators must be of types in this table. A type that changed its form has a
// row for each form: only the one that size_fits() accepts is put on trial. A row that no longer fits costs rewinds,
// not correctness.
const Layout kLayouts[] = {
    {kRangeIteratorFields, "iter(range(5))"},
    {kLongRangeIteratorFields, "iter(range(1 << 70, (1 << 70) + 5))"},
    {"ns", "iter([1, 2, 3, 4])"},
    {"ns", "reversed([1, 2, 3, 4])"},
    {"ns", "iter((1, 2, 3, 4))"},
    {"ns", "reversed((1, 2, 3, 4))"},
    {"ns", "iter('abcd')"},
    {"ns", "iter('ab\\u0105\\u0107')"},
    {"ns", "iter(b'abcd')"},
    {"ns", "iter(Sequence())"},
    {"snn-n", "iter({1: 1, 2: 2, 3: 3})"},
    {"snn-n", "iter({1: 1, 2: 2, 3: 3}.values())"},
    {"snn-n", "iter({1: 1, 2: 2, 3: 3}.items())"},
    {"snn-n", "reversed({1: 1, 2: 2, 3: 3})"},
    {"snn-n", "reversed({1: 1, 2: 2, 3: 3}.values())"},
    {"snn-n", "reversed({1: 1, 2: 2, 3: 3}.items())"},
    {"snnn", "iter({1, 2, 3})"},
    {kEnumerateFields, "enumerate(iter([5, 6, 7, 8]), 3)"},
    {"-t--", "zip(iter([1, 2, 3, 4]), iter((5, 6, 7, 8)))"},
    {"tf", "map(abs, iter([1, 2, 3, 4]))"},
    {"fi", "filter(None, iter([1, 2, 3, 4]))"},
    {"Innnn", "itertools.islice(iter([1, 2, 3, 4, 5, 6]), 1, 6)"},
    {"II", "itertools.chain([1], [2, 3], [4])"},
    {"np-", "itertools.count(4)"},
    {"-n", "itertools.repeat(7, 5)"},
    {"Iann", "itertools.cycle(iter([1, 2, 3, 4, 5]))"},
    {"-drn", "itertools.product([1, 2], (3, 4))"},
    {"-crnn", "itertools.combinations([1, 2, 3, 4], 2)"},
    {"-crnn", "itertools.combinations_with_replacement([1, 2, 3], 2)"},
    {"fi", "itertools.starmap(max, iter([(1, 2), (3, 4), (5, 6), (7, 8)]))"},
    {"fi", "itertools.filterfalse(callable, iter([1, 2, 3, 4]))"},
    {"fin", "itertools.takewhile(bool, iter([1, 2, 3, 4]))"},
    {"fin", "itertools.dropwhile(bool, iter([0, 1, 2, 3]))"},
    {"ii", "itertools.compress(iter([1, 2, 3, 4, 5]), iter([1, 1, 0, 1, 1]))"},
    {"Io", "itertools.pairwise([1, 2, 3, 4, 5])"},
    {"Io-", "itertools.pairwise([1, 2, 3, 4, 5])"},  // with a cached result from 3.13 on
    {"-nt--", "itertools.zip_longest(iter([1, 2, 3, 4]), iter((5, 6)))"},
};
const int kLayoutCount = sizeof(kLayouts) / sizeof(kLayouts[0]);

// The cheapest test, before any word is read: a layout with more words than the object has would read beyond it.
bool size_fits(PyTypeObject* type, const char* fields) {
  return type->tp_basicsize == static_cast<Py_ssize_t>(sizeof(PyObject) + std::strlen(fields) * sizeof(PyObject*));
}

// A list by its length, a set by its number of elements, a dict by its table as well: its iterator holds an index into
// that table. Tuples, strings and ranges do not change and need no number. 0 for objects of unknown type too: an
// iterator over __getitem__ is trusted.
std::uint64_t shape_of(PyObject* source) {
  if (source == nullptr) return 0;
  if (PyList_Check(source)) return static_cast<std::uint64_t>(PyList_GET_SIZE(source));
  if (PyDict_Check(source)) return dict_layout(source);
  if (PyAnySet_Check(source)) return static_cast<std::uint64_t>(reinterpret_cast<PySetObject*>(source)->used);
  return 0;
}

namespace {

// The state of product() and the combinations of itertools: for each place of the tuple that was given last, the index
// of the element in its pool. The indices lie in a C array of Py_ssize_t that the iterator owns. They are written down
// as one number with a digit per place, because a record has a single word for each field.
class Digits {
 public:
  Digits(PyObject** words, int at, char field) : several_(field == 'd') {
    PyObject* pools = words[at - 1];
    digits_ = reinterpret_cast<Py_ssize_t*>(words[at]);
    if (digits_ == nullptr || pools == nullptr || !PyTuple_CheckExact(pools)) return;
    // product() has a pool for each place ('d'); the others draw all places from one pool, and have the number of
    // places two words behind the array ('c').
    pools_ = pools;
    count = several_ ? PyTuple_GET_SIZE(pools) : reinterpret_cast<Py_ssize_t>(words[at + 2]);
  }

  Py_ssize_t count = -1;  // -1: there are none to read
  Py_ssize_t& operator[](Py_ssize_t i) { return digits_[i]; }
  PyObject* pool(Py_ssize_t i) const { return several_ ? PyTuple_GET_ITEM(pools_, i) : pools_; }
  // At least 1, as put_digits() divides by it: an empty pool makes an iterator that gives nothing.
  Py_ssize_t base(Py_ssize_t i) const { return std::max<Py_ssize_t>(1, PyTuple_GET_SIZE(pool(i))); }

 private:
  bool several_;
  PyObject* pools_ = nullptr;
  Py_ssize_t* digits_ = nullptr;
};

}  // namespace

// -1 also where an index is outside its pool. The layout is then not what this table says, or the iterator has ended.
std::int64_t digits_of(PyObject** words, int at, char field) {
  Digits digits(words, at, field);
  if (digits.count < 0) return -1;
  std::int64_t number = 0;
  for (Py_ssize_t i = 0; i < digits.count; ++i) {
    if (digits[i] < 0 || digits[i] >= digits.base(i) || __builtin_mul_overflow(number, digits.base(i), &number) ||
        __builtin_add_overflow(number, digits[i], &number))
      return -1;
  }
  return number;
}

void put_digits(PyObject** words, int at, char field, std::int64_t number) {
  Digits digits(words, at, field);
  for (Py_ssize_t i = digits.count; i-- > 0; number /= digits.base(i)) digits[i] = number % digits.base(i);
}

// The iterator computes the next tuple from the last one, which it holds, and changes that in place where it has the
// only reference. The tuple of then may thus not exist any more, and is built again.
Object given_by_digits(PyObject** words, int at, char field) {
  Digits digits(words, at, field);
  Object given = Object::take(PyTuple_New(std::max<Py_ssize_t>(0, digits.count)));
  for (Py_ssize_t i = 0; given && i < digits.count; ++i) {
    PyTuple_SET_ITEM(given.get(), i, Object::share(PyTuple_GET_ITEM(digits.pool(i), digits[i])).release());
  }
  return given;
}

}  // namespace finitude::bindings
