#include "rewind/stack_torch.h"

#include <ATen/EmptyTensor.h>
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/meter.h"
#include "pyhost/user_stack.h"
#include "rewind/frames_python.h"

namespace finitude::bindings {
namespace {

// Batches are small compared to the model; what is larger is remembered weakly like any activation.
constexpr std::size_t kStrongBytes = 48u << 20;

// Outputs that are read after the step as well (what is predicted, a hidden state that is carried on) are smaller
// still.
constexpr std::size_t kOutputBytes = 2u << 20;

// Bounds what one snapshot may keep alive beyond the program's own references.
struct Budget {
  std::size_t left = kStrongBytes;
  std::size_t outputs_left = kOutputBytes;
};

bool fits(std::size_t size_bytes, std::size_t* left) {
  if (size_bytes > *left) return false;
  *left -= size_bytes;
  return true;
}

// The bytes of a numpy array that holds nothing but numbers, else nothing.
std::optional<std::size_t> bytes_of_array(PyObject* object) {
  if (std::string_view(Py_TYPE(object)->tp_name) != "numpy.ndarray") return std::nullopt;
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const bool plain = view.format == nullptr || std::string_view(view.format).find('O') == std::string_view::npos;
  const auto size_bytes = static_cast<std::size_t>(view.len);
  PyBuffer_Release(&view);
  return plain ? std::optional(size_bytes) : std::nullopt;
}

// Leaf data (a batch fetched ahead) is kept; activations are not, since they would raise the peak memory of the
// program. Runs no Python code, as KeepStrong demands; the buffer of an array is released at once.
bool keep_strong(PyObject* object, void* context) {
  std::size_t* left = &static_cast<Budget*>(context)->left;
  if (!is_tensor_object(object)) {
    const auto size_bytes = bytes_of_array(object);
    return size_bytes && fits(*size_bytes, left);
  }
  const at::Tensor& t = THPVariable_Unpack(object);
  if (t.requires_grad()) return false;  // also of what a graph leads to
  observe::TensorView v;
  if (!observe::place_of(*t.unsafeGetTensorImpl(), &v)) return false;
  return fits(static_cast<std::size_t>(v.storage->nbytes()), left);
}

// Makes the tensor of one number from its bits; empty if that fails. It does not call the dispatcher, since modes of
// the program may be active and would see the call.
Object tensor_of_number(const StandIn& of) try {
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(of.dims), 1);
  at::Tensor made(at::detail::empty_cpu(sizes, static_cast<at::ScalarType>(of.dtype)));
  std::memcpy(made.mutable_data_ptr(), of.bits, made.itemsize());
  return Object::take(THPVariable_Wrap(std::move(made)));
} catch (const std::exception&) {
  return Object();
}

// A dead output's values without its graph. The memory is shared and not copied, so it lives as long as this does; the
// budget for outputs bounds it.
class Detached final : public Substitute {
 public:
  explicit Detached(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  Object make() const override { return Object::take(THPVariable_Wrap(tensor_)); }

 private:
  at::Tensor tensor_;
};

// What follows the step reads the loss (print, loss.item()) and counts outputs. A number is copied by its bits; outputs
// share their memory within the budget. Their graphs are not kept. Runs in every step, inside take(): no Python code,
// no operator.
void make_stand_in(PyObject* object, void* context, StandIn* out) {
  const at::Tensor& t = THPVariable_Unpack(object);
  observe::TensorView v;
  if (!t.defined() || !observe::place_of(*t.unsafeGetTensorImpl(), &v)) return;
  if (v.numel == 1 && v.ordinary && t.itemsize() <= sizeof out->bits) {
    std::memcpy(out->bits, v.data, t.itemsize());
    out->dtype = static_cast<std::int32_t>(t.scalar_type());
    out->dims = static_cast<std::int32_t>(t.dim());
    out->make = &tensor_of_number;
    return;
  }
  if (t.requires_grad() && !t.grad_fn() && v.storage->nbytes() > 4096) return;  // a parameter, which does not die
  if (!fits(v.storage->nbytes(), &static_cast<Budget*>(context)->outputs_left)) return;
  out->substitute = std::make_unique<Detached>(at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(t.unsafeGetTensorImpl()->version_counter()), /*allow_tensor_metadata_change=*/false)));
}

// Leaked on purpose: its destructor would drop Python references after the interpreter has gone.
StackSnapshot& before_second_run() {
  static StackSnapshot* instance = new StackSnapshot();
  return *instance;
}

std::vector<std::string> unset;  // by the last restore
std::vector<PyCodeObject*> unset_in;
bool has_rules = false;

PyObject* set_places(PyObject*, PyObject* args) {
  PyObject *prefixes, *tensor, *iterators, *codes, *optimizer;
  if (!PyArg_ParseTuple(args, "OOOOO", &prefixes, &tensor, &iterators, &codes, &optimizer)) return nullptr;
  FrameRules rules;
  for (Py_ssize_t i = 0; i < PyList_Size(prefixes); ++i) {
    const char* text = PyUnicode_AsUTF8(PyList_GetItem(prefixes, i));
    if (text == nullptr) return nullptr;
    rules.library_prefixes.emplace_back(text);
  }
  const auto type = [](PyObject* object) { return reinterpret_cast<PyTypeObject*>(object); };
  rules.tensor_type = type(tensor);
  rules.optimizer_type = type(optimizer);
  for (Py_ssize_t i = 0; i < PyList_Size(iterators); ++i) {
    rules.external_iterators.push_back(type(PyList_GetItem(iterators, i)));
  }
  for (Py_ssize_t i = 0; i < PyList_Size(codes); ++i) rules.module_calls.push_back(PyList_GetItem(codes, i));
  set_frame_rules(rules);
  has_rules = true;
  Py_RETURN_NONE;
}

// unset_names() -> [(name, code of the function whose it is, or None)] of those that the last restore left unset
PyObject* unset_names(PyObject*, PyObject*) {
  Object list = Object::take(PyList_New(0));
  for (std::size_t i = 0; list && i < unset.size(); ++i) {
    PyObject* code = unset_in[i] != nullptr ? reinterpret_cast<PyObject*>(unset_in[i]) : Py_None;
    const Object both = Object::take(Py_BuildValue("(sO)", unset[i].c_str(), code));
    if (!both || PyList_Append(list.get(), both.get()) != 0) list = Object();
  }
  return list.release();
}

// running_iterators() -> those of the loops that this thread's user code is in, which may have no name
PyObject* running(PyObject*, PyObject*) {
  std::vector<PyObject*> found;
  running_iterators(&found);
  Object list = Object::take(PyList_New(0));
  for (PyObject* iterator : found) {
    if (list && PyList_Append(list.get(), iterator) != 0) list = Object();
  }
  return list.release();
}

// function_names(frame) -> {name: value}; the frame is that of a function
PyObject* names_of_function(PyObject*, PyObject* frame) {
  if (!PyFrame_Check(frame)) {
    PyErr_SetString(PyExc_TypeError, "a frame is expected");
    return nullptr;
  }
  return function_names(frame);
}

// position_is_known(object): is it an iterator of CPython's own whose position a snapshot notes and puts back?
PyObject* position_is_known(PyObject*, PyObject* object) {
  return PyBool_FromLong(type_info(Py_TYPE(object)).layout >= 0);
}

PyMethodDef stack_table[] = {
    {"position_is_known", position_is_known, METH_O, nullptr}, {"function_names", names_of_function, METH_O, nullptr},
    {"set_places", set_places, METH_VARARGS, nullptr},         {"unset_names", unset_names, METH_NOARGS, nullptr},
    {"running_iterators", running, METH_NOARGS, nullptr},      {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* stack_methods() { return stack_table; }

// The budget is on this stack: the callbacks that use it run only inside take().
std::string stack_take(StackSnapshot* snapshot) {
  const Metered frames(Piece::kFrames);
  if (!has_rules) return "the rules for user code were not set";
  Budget budget;
  snapshot->take({&keep_strong, &make_stand_in, &budget});
  return {};
}

std::string stack_check(StackSnapshot* snapshot) {
  const RewindVerdict verdict = snapshot->can_restore();
  return verdict ? std::string() : verdict.reason;
}

std::string stack_restore(StackSnapshot* snapshot) {
  std::string why;
  const bool done = snapshot->restore(&why);
  unset = snapshot->unset_names();
  unset_in = snapshot->unset_in();
  return done ? std::string() : why.empty() ? "the stack could not be put back" : why;
}

void stack_take_now() {
  SnapshotOptions all;
  all.keep_all = true;  // the program continues from the first run and may read what the second rebinds
  before_second_run().take(all);
}

std::string stack_check_now() { return stack_check(&before_second_run()); }

void stack_forget_now() { before_second_run().clear(); }

// The snapshot is cleared in any case: it holds every value of the program, and is of no use a second time.
bool stack_put_back_now() {
  std::string why;
  const bool done = before_second_run().can_restore() && before_second_run().restore(&why);
  before_second_run().clear();
  return done;
}

}  // namespace finitude::bindings
