// Streams of random numbers whose state lies in an object's own memory: numpy's Generator and RandomState, Python's
// random.Random. Which bytes those are, finitude/program/rng_generators.py finds out and tries. All with the GIL held.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace finitude::bindings {

struct StreamState {
  const PyObject* of = nullptr;      // an address, to know it again by
  std::vector<std::uint8_t> bytes;   // of all its regions, one behind the other
  std::optional<double> next_gauss;  // random.Random's, the second of a pair of normal numbers; nothing for None

  bool operator==(const StreamState&) const = default;
};

// Those of the program that are part of every snapshot from now on: [(object, ((address, bytes), ...), has it a
// gauss_next)]. Each is held. False, with a Python error: no such list.
bool watch_streams(PyObject* list);
void take_streams(std::vector<StreamState>* states) noexcept;
// Of those that are watched still.
void restore_streams(const std::vector<StreamState>& states) noexcept;

}  // namespace finitude::bindings
