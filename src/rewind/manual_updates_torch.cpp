#include "rewind/manual_updates_torch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>
#include <vector>

#include "base/immortal.h"
#include "gate/engine_call.h"
#include "gate/state_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/exception_barrier_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "rewind/snapshot_torch.h"
#include "rewind/window_start_torch.h"

namespace finitude::bindings {
namespace {

bool wants_all = true;    // the Python side is called at every engine call, not only at bad ones
std::uint64_t calls = 0;  // before the one under way
RngState step_rng;
bool keeps_buffers = false;  // as each call returns: the next window begins with them
bool keeps_start = false;    // and it can be run again from there

constexpr std::size_t kGivenBytes = 48u << 20;

// What the last autograd.grad returned, while window starts are kept. A second run begins where that call returned and
// gets the same gradients once more.
struct Given {
  Object gradients;  // a tuple; empty: none, or too large
  std::vector<std::uint32_t> versions;
};

base::Immortal<Given> the_given;

// A reference and no copy: the script usually reads the gradients only. The version counters show later whether it
// wrote into them. Inference tensors have no counter, so a result with one is not kept.
void keep_given(PyObject* result) {
  Given& given = *the_given;
  given.versions.clear();
  given.gradients = Object();
  std::size_t size_bytes = 0;
  if (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) == 0) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(result); ++i) {
    PyObject* one = PyTuple_GET_ITEM(result, i);
    const bool is_tensor =
        is_tensor_object(one) && THPVariable_Unpack(one).defined() && !THPVariable_Unpack(one).is_inference();
    if (!is_tensor && one != Py_None) return;
    given.versions.push_back(is_tensor ? static_cast<std::uint32_t>(THPVariable_Unpack(one)._version()) : 0);
    // With a graph (create_graph) it would hold all of that.
    if (is_tensor && THPVariable_Unpack(one).requires_grad()) return;
    if (is_tensor) size_bytes += THPVariable_Unpack(one).nbytes();
  }
  if (size_bytes <= kGivenBytes) given.gradients = Object::share(result);
}

// hand_given() -> those gradients, a new reference, or None where one of them was written since.
PyObject* hand_given(PyObject*, PyObject*) {
  const Given& given = *the_given;
  if (!given.gradients) Py_RETURN_NONE;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.gradients.get()); ++i) {
    PyObject* one = PyTuple_GET_ITEM(given.gradients.get(), i);
    if (one != Py_None && THPVariable_Unpack(one)._version() != given.versions[static_cast<std::size_t>(i)])
      Py_RETURN_NONE;
  }
  return Object(given.gradients).release();
}

// The engine call whose window runs a second time. The program continues from it afterwards: when the second run comes
// back to the same place, this call is made in place of that one, on the tensors of the first run. Until then all its
// arguments are held, and with them the graph of the loss.
class FirstCall {
 public:
  bool is_held() const { return !args_.empty(); }
  Py_ssize_t nargs() const { return nargs_; }
  PyObject* const* args() const { return args_.data(); }
  PyObject* kwnames() const { return kwnames_; }
  void hold(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
    args_.assign(args, args + nargs + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0));
    for (PyObject* one : args_) held_.push_back(Object::share(one));
    held_.push_back(Object::share(kwnames));
    nargs_ = nargs;
    kwnames_ = kwnames;
  }

 private:
  std::vector<PyObject*> args_;
  Py_ssize_t nargs_ = 0;
  PyObject* kwnames_ = nullptr;
  std::vector<Object> held_;  // all of these
};

base::Immortal<FirstCall> the_first_call;

// It is held no more when its references die: to free a graph may run hooks of the program, which may make engine
// calls.
FirstCall take_first_call() { return std::exchange(*the_first_call, FirstCall()); }

// Only roots in plain CPU memory are read: a read of a device would wait for it in every step.
bool any_bad(PyObject* roots) {
  for (Py_ssize_t i = 0; PyTuple_Check(roots) && i < PyTuple_GET_SIZE(roots); ++i) {
    PyObject* root = PyTuple_GET_ITEM(roots, i);
    observe::TensorView v;
    if (is_tensor_object(root) && THPVariable_Unpack(root).defined() &&
        observe::view_of(*THPVariable_Unpack(root).unsafeGetTensorImpl(), &v) && observe::quick(v).bad) {
      return true;
    }
  }
  return false;
}

// hand_calls() -> how many such calls there were before the one under way.
PyObject* hand_calls(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(calls); }

// hand_watch(all): call the Python side at every engine call, or only where a root is not finite.
PyObject* hand_watch(PyObject*, PyObject* all) {
  wants_all = PyObject_IsTrue(all) == 1;
  Py_RETURN_NONE;
}

PyObject* hand_reset(PyObject*, PyObject*) {
  wants_all = true;
  calls = 0;
  keeps_start = keeps_buffers = false;
  (*the_given).gradients = Object();
  take_first_call();
  Py_RETURN_NONE;
}

// hand_keep(buffers, start): what is noted as each call returns: buffers, or all that the window that begins there
// needs to be run again.
PyObject* hand_keep(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2) {
    PyErr_SetString(PyExc_TypeError, "hand_keep(buffers, start)");
    return nullptr;
  }
  keeps_buffers = PyObject_IsTrue(args[0]) == 1;
  keeps_start = PyObject_IsTrue(args[1]) == 1;
  if (!keeps_start) (*the_given).gradients = Object();
  Py_RETURN_NONE;
}

// hand_first(node): the first call comes, of a graph that begins at that node.
PyObject* hand_first(PyObject*, PyObject* node) {
  const std::uint64_t first = PyLong_AsUnsignedLongLong(node);
  if (PyErr_Occurred() != nullptr) return nullptr;
  first_step_comes(first);
  Py_RETURN_NONE;
}

// hand_put_back(): buffers as the window began with them.
PyObject* hand_put_back(PyObject*, PyObject*) {
  buffer_snapshot().restore();
  Py_RETURN_NONE;
}

// hand_lost(): the second run has not come back to the call, and never will.
PyObject* hand_lost(PyObject*, PyObject*) {
  take_first_call();
  Py_RETURN_NONE;
}

// hand_take() keeps the generators as they are now, and hand_restore() sets them back to that.
PyObject* hand_take(PyObject*, PyObject*) {
  take_rng(&step_rng);
  Py_RETURN_NONE;
}

PyObject* hand_restore(PyObject*, PyObject*) {
  restore_rng(step_rng);
  Py_RETURN_NONE;
}

PyMethodDef manual_update_table[] = {
    {"hand_calls", hand_calls, METH_NOARGS, nullptr},
    {"hand_watch", hand_watch, METH_O, nullptr},
    {"hand_reset", hand_reset, METH_NOARGS, nullptr},
    {"hand_take", hand_take, METH_NOARGS, nullptr},
    {"hand_restore", hand_restore, METH_NOARGS, nullptr},
    {"hand_first", hand_first, METH_O, nullptr},
    {"hand_keep", reinterpret_cast<PyCFunction>(hand_keep), METH_FASTCALL, nullptr},
    {"hand_given", hand_given, METH_NOARGS, nullptr},
    {"hand_lost", hand_lost, METH_NOARGS, nullptr},
    {"hand_put_back", hand_put_back, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// Makes the call and returns what the program gets, a new reference, or null with the error. watched: the Python side
// may return something else in its place. The start of the next window is recorded last: the window begins where this
// returns.
PyObject* call_engine(Vectorcall plain, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool watched) {
  Object result = Object::take(plain(nullptr, args, nargs, kwnames));
  ++calls;
  if (watched && result) {
    Object instead = call_cold("on_hand_end", result.get());
    if (instead.get() != Py_None) result = std::move(instead);
  }
  if (!result) return nullptr;
  as_guest([&] {
    if (keeps_start && live().optimizers.empty()) {
      keep_given(result.get());
      snapshot_window_by_hand();
    } else if (keeps_buffers) {
      buffer_snapshot().take();
    }
  });
  return result.release();
}

}  // namespace

PyObject* backward_by_hand(Vectorcall plain, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool to_leaves = accumulates(args, nargs, kwnames);
  FirstCall& first = *the_first_call;
  const bool is_second = first.is_held();
  if (!to_leaves && !is_second) ++live().counters.backward_calls;
  bool watched = false;
  bool bad = false;
  // A call that ends a second run always goes to the Python side, which waits for it.
  if (nargs > 0 && !wants_all && !is_second) as_guest([&] { bad = any_bad(args[0]); });
  if (nargs > 0 && (wants_all || is_second || bad)) {
    // An empty tuple of inputs: all leaves below the roots.
    PyObject* inputs = nargs > 4 ? args[4] : Py_None;
    // It answers with an exception, with a tuple of one value (return this value now: the window runs again from here),
    // with True (call on_hand_end as well), or with something else (just make the call).
    const Object r = call_cold("on_hand_begin", args[0], inputs, to_leaves ? Py_True : Py_False);
    if (!r) {  // NonFiniteError
      take_first_call();
      return nullptr;
    }
    // What is returned for the window to run a second time.
    if (PyTuple_Check(r.get()) && PyTuple_GET_SIZE(r.get()) == 1) {
      if (!is_second) as_guest([&] { first.hold(args, nargs, kwnames); });
      return Object::share(PyTuple_GET_ITEM(r.get(), 0)).release();
    }
    watched = r.get() == Py_True;
  }
  // The second run has come back. Its own arguments are ignored, and the first call is made at last.
  if (!first.is_held()) return call_engine(plain, args, nargs, kwnames, watched);
  const FirstCall call = take_first_call();
  return call_engine(plain, call.args(), call.nargs(), call.kwnames(), watched);
}

PyMethodDef* manual_update_methods() { return manual_update_table; }

}  // namespace finitude::bindings
