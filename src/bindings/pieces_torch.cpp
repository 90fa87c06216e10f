// Single pieces of a healthy step, called again and again, for bench/pieces. Real code on real state; nothing else
// calls this.
#include "bindings/pieces_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/thread_time.h"
#include "gate/gradients_torch.h"
#include "gate/losses_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/post_step_scan_torch.h"
#include "gate/state_torch.h"
#include "gate/window_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "rewind/frames_python.h"
#include "rewind/loader_torch.h"
#include "rewind/stack_torch.h"
#include "rewind/window_start_torch.h"

namespace finitude::bindings {
namespace {

double thread_ns() noexcept { return static_cast<double>(base::thread_time().count()); }

double time_of(long count, const std::function<void()>& call) {
  const double before = thread_ns();
  for (long i = 0; i < count; ++i) call();
  return (thread_ns() - before) / static_cast<double>(count);
}

// The pieces that need an optimizer. False: no such name.
bool of_optimizer(const std::string& name, OptimizerEntry& entry, long count, double* ns) {
  volatile std::uint32_t kept = 0;
  WindowVerdict verdict;
  const auto clear_marks = [&] { std::fill(entry.marks.begin(), entry.marks.end(), GradMark()); };
  if (name == "walk") {
    *ns = time_of(count, [&] {
      std::uint32_t with_gradient = 0;
      for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) { with_gradient += gradient_of(p) != nullptr; });
      kept = with_gradient;
    });
  } else if (name == "judge, all to be read") {
    *ns = time_of(count, [&] {
      clear_marks();
      verdict = WindowVerdict();
      judge_window(entry, &verdict);
    });
  } else if (name == "judge, all read before") {
    judge_window(entry, &verdict);
    *ns = time_of(count, [&] {
      verdict = WindowVerdict();
      judge_window(entry, &verdict);
    });
  } else if (name == "close the window") {
    *ns = time_of(count, [&] { close_window(entry); });
  } else if (name == "ring") {
    *ns = time_of(count, [&] { record_step(entry, verdict, entry.lr, record::kStepApplied); });
  } else if (name == "window start") {
    *ns = time_of(count, [&] { snapshot_window(entry); });
  } else if (name == "read everything written") {
    *ns = time_of(count, [&] { kept = wrote_non_finite(entry); });
  } else if (name == "undo copy") {
    UndoCopy copy;
    *ns = time_of(count, [&] { kept = copy.take(entry.self, ~std::size_t{0}); });
  } else {
    return false;
  }
  return true;
}

bool of_tensor(const std::string& name, PyObject* object, long count, double* ns) {
  volatile bool kept = false;
  if (!is_tensor_object(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (name == "scan") {
    *ns = time_of(count, [&] { kept = judge(tensor).state != GradMark::kClean; });
  } else if (name == "loss") {
    Live& l = live();
    *ns = time_of(count, [&] {
      note_roots(object, nullptr);
      if (!l.losses.empty()) l.losses.pop_back();
    });
  } else {
    return false;
  }
  return true;
}

// One load from a page that nothing has touched since 64 MB went through the caches, each load waiting for the one
// before: what a step leaves to the code that runs after it. The mean of `count` times 256 loads.
double cold_page(long count) {
  constexpr std::size_t kPages = 256, kPage = 4096, kSwept = 64u << 20;
  std::vector<char> swept(kSwept), pages((kPages + 1) * kPage);
  std::vector<std::size_t> order(kPages);
  for (std::size_t i = 0; i < kPages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::minstd_rand(1));
  const auto line = [&](std::size_t page) { return pages.data() + page * kPage + page * 64 % kPage; };
  for (std::size_t i = 0; i < kPages; ++i) {
    char* const next = line(order[(i + 1) % kPages]);
    std::memcpy(line(order[i]), &next, sizeof next);
  }
  double total = 0;
  for (long k = 0; k < count; ++k) {
    for (std::size_t i = 0; i < kSwept; i += 64) ++swept[i];
    const char* at = line(order[0]);
    total += time_of(1, [&] {
      for (std::size_t i = 0; i < kPages; ++i) std::memcpy(&at, at, sizeof at);
    });
    if (at != line(order[0])) return 0;
  }
  return total / static_cast<double>(count) / kPages;
}

bool of_process(const std::string& name, PyObject* object, long count, double* ns) {
  volatile bool kept = false;
  if (name == "rng") {
    static RngState* state = new RngState();
    *ns = time_of(count, [&] { take_rng(state); });
  } else if (name == "cold page") {
    *ns = cold_page(count);
  } else if (name == "buffers") {
    *ns = time_of(count, [&] { buffer_snapshot().take(); });
  } else if (name == "buffer check") {
    *ns = time_of(count, [&] { kept = buffer_snapshot().turned_nan(); });
  } else if (name == "frames") {
    static StackSnapshot* stack = new StackSnapshot();
    *ns = time_of(count, [&] { kept = stack_take(stack).empty(); });
  } else if (name == "loader") {  // `object` is what original_next takes for an iterator
    *ns = time_of(count, [&] {
      Object::take(loader_log().next(object));
      loader_log().forget();
    });
  } else {
    return false;
  }
  return true;
}

// time_piece(name, object, count) -> thread CPU nanoseconds of one call, the mean of `count` of them.
PyObject* time_piece(PyObject*, PyObject* args) {
  const char* name = nullptr;
  PyObject* object = nullptr;
  long count = 0;
  if (!PyArg_ParseTuple(args, "sOl", &name, &object, &count)) return nullptr;
  double ns = 0;
  OptimizerEntry* entry = find_entry(object);
  const bool known = (entry != nullptr && of_optimizer(name, *entry, count, &ns)) ||
                     of_tensor(name, object, count, &ns) || of_process(name, object, count, &ns);
  if (!known) return PyErr_Format(PyExc_ValueError, "no piece %s of this object", name);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyFloat_FromDouble(ns);
}

// time_call(callable, arguments, names of the last ones or None, count) -> the same of a call from C, as torch's own
// Python code would make it.
PyObject* time_call(PyObject*, PyObject* args) {
  PyObject *callable, *arguments, *names;
  long count = 0;
  if (!PyArg_ParseTuple(args, "OO!Ol", &callable, &PyTuple_Type, &arguments, &names, &count)) return nullptr;
  PyObject* kwnames = PyTuple_Check(names) ? names : nullptr;
  const Py_ssize_t named = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  std::vector<PyObject*> stack(1);  // room in front, as the interpreter leaves it
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) stack.push_back(PyTuple_GET_ITEM(arguments, i));
  if (named > PyTuple_GET_SIZE(arguments)) return PyErr_Format(PyExc_ValueError, "more names than arguments");
  const auto nargs = static_cast<std::size_t>(PyTuple_GET_SIZE(arguments) - named);
  bool failed = false;
  const double ns = time_of(count, [&] {
    failed = failed || !Object::take(PyObject_Vectorcall(callable, stack.data() + 1,
                                                         nargs | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames));
  });
  return failed ? nullptr : PyFloat_FromDouble(ns);
}

// Takes anything and does nothing: what a call costs by itself.
PyObject* nothing(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) { Py_RETURN_NONE; }

PyMethodDef piece_table[] = {
    {"time_piece", time_piece, METH_VARARGS, nullptr},
    {"time_call", time_call, METH_VARARGS, nullptr},
    {"nothing", reinterpret_cast<PyCFunction>(nothing), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* piece_methods() { return piece_table; }

}  // namespace finitude::bindings
