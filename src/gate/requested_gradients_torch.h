// Gradients that torch.autograd.grad and torch.func hand to the script, which may drop them before any step.
//
// A bad loss that they are given, and bad gradients of a finite one, are noted as script_nan_checks_torch.h notes a
// value that the script looks at, where they are asked for by parameters of an optimizer. The next call settles them as
// dropped, unless a step has met them. The gradients of a finite loss are read once more here: nothing shows what the
// script makes of them. Those of torch.func are not, nor those on a GPU. With create_graph they are part of the loss to
// come and left alone. All with the GIL held.
#pragma once

#include <Python.h>

#include <cstdint>

namespace finitude::bindings {

// An outermost call begins, with the arguments of torch.autograd.graph._engine_run_backward. True: note_answered is to
// be called with what it returns.
bool note_asked(PyObject* const* args, Py_ssize_t nargs);
void note_answered(PyObject* const* args, PyObject* result);

// As many calls in a row as --max-skips were dropped: asks the Python side. False: it raises.
bool report_asked_row();
// A step is applied.
void end_asked_row() noexcept;

}  // namespace finitude::bindings
