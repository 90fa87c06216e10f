#include "pyhost/meter.h"

#include <algorithm>

#include "pyhost/object_python.h"

namespace finitude::bindings {

Meter meter;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kNames[Meter::kPieces] = {"program", "hook",         "loss", "gradients", "verdict",
                                                "ring",    "buffer check", "rng",  "buffers",   "frames",
                                                "loader",  "written",      "undo"};

// Both clocks at the start, for the length of a tick.
struct Started {
  std::uint64_t tick = 0;
  Clock::time_point time;
};
Started started;

// Ticks that an empty piece is charged: the shortest of many tries, as an interrupt only makes one longer. It spoils
// the totals of kUndo, so meter_stop() copies what it reports before.
std::uint64_t ticks_of_nothing() noexcept {
  constexpr int kTries = 256;
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = meter.totals.ticks[static_cast<std::size_t>(Piece::kUndo)];
    { const Metered nothing(Piece::kUndo); }
    least = std::min(least, meter.totals.ticks[static_cast<std::size_t>(Piece::kUndo)] - before);
  }
  return least;
}

PyObject* meter_start(PyObject*, PyObject*) {
  meter = Meter();
  started = {Meter::tick(), Clock::now()};
  meter.since = started.tick;
  meter.on = true;
  Py_RETURN_NONE;
}

PyObject* meter_lap(PyObject*, PyObject* forget) {
  if (forget == Py_True) {
    meter.totals = meter.at_last_lap;
  } else {
    meter.at_last_lap = meter.totals;
    ++meter.laps;
  }
  Py_RETURN_NONE;
}

// Reports up to the last lap that counted: what ran since belongs to no complete step. Piece 0, the program, is
// skipped.
PyObject* meter_stop(PyObject*, PyObject*) {
  const std::uint64_t ticks = Meter::tick() - started.tick;
  const double ns = std::chrono::duration<double, std::nano>(Clock::now() - started.time).count();
  const Meter::Totals found = meter.at_last_lap;
  const auto laps = static_cast<unsigned long long>(meter.laps);
  const double nothing = meter.on ? static_cast<double>(ticks_of_nothing()) : 0;
  meter.on = false;
  const double ns_per_tick = ticks == 0 ? 0 : ns / static_cast<double>(ticks);
  Object out = Object::take(PyDict_New());
  for (std::size_t i = 1; out && i < Meter::kPieces; ++i) {
    const double calls = static_cast<double>(found.calls[i]);
    const double clock = nothing * (calls + static_cast<double>(found.splits[i]));
    const double own = std::max(0.0, static_cast<double>(found.ticks[i]) - clock) * ns_per_tick;
    const Object pair = Object::take(Py_BuildValue("(dK)", own, static_cast<unsigned long long>(found.calls[i])));
    if (!pair || PyDict_SetItemString(out.get(), kNames[i], pair.get()) != 0) out = Object();
  }
  return out ? Py_BuildValue("(KO)", laps, out.get()) : nullptr;
}

PyMethodDef meter_table[] = {
    {"meter_start", meter_start, METH_NOARGS, nullptr},
    {"meter_lap", meter_lap, METH_O, nullptr},
    {"meter_stop", meter_stop, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* meter_methods() { return meter_table; }

}  // namespace finitude::bindings
