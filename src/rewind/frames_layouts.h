// How CPython's own iterators lie in memory: where each keeps its position. The GIL is held.
#pragma once

#include <Python.h>

#include <cstdint>

#include "pyhost/object_python.h"

namespace finitude::bindings {

// One letter for each word behind the object header:
//   n  a position, as a number        p  a position, as a Python object
//   s  what it runs over; cleared when it has ended
//   i  the iterator it draws from     I  the same, but it may change or be cleared
//   t  a tuple of such iterators, whose places may be cleared where one has ended
//   f  the function it applies        o  a value that it gave and gives again
//   a  a list of its own that it appends to
//   d  digits: the numbers of the elements that it gave last, of the pools in the word before
//   c  the same, all of the one pool in the word before, as many as the word after the next one says
//   r  what it gave last, made of these elements
//   -  left alone: a cached result, a constant
// A layout has one of s, o, d and c at most.
struct Layout {
  const char* fields;
  const char* sample;  // an iterator of that type that gives at least three values
};

extern const Layout kLayouts[];
extern const int kLayoutCount;
constexpr int kMaxFields = 5;

inline PyObject** words_of(PyObject* object) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + sizeof(PyObject));
}

// Is an object of this type as large as such a layout?
bool size_fits(PyTypeObject* type, const char* fields);
// Changes when a position in what is run over would no longer mean the same element.
std::uint64_t shape_of(PyObject* source);

// The digits at words[at] as one number; -1 where that is too large for 63 bits.
std::int64_t digits_of(PyObject** words, int at, char field);
void put_digits(PyObject** words, int at, char field, std::int64_t number);
// What the iterator gave when its digits, at words[at], were the ones that it has; empty with an error.
Object given_by_digits(PyObject** words, int at, char field);

}  // namespace finitude::bindings
