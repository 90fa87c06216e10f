"""Everything that differs between versions of Python and torch, in one place (C++: src/bindings/python_compat.h)."""

import re
import sys

PYTHON_RANGE = ((3, 10), (3, 13))
TORCH_RANGE = ((2, 7), (2, 13))


def torch_version(text):
    """(major, minor) of a version such as '2.13.0+cpu'; (0, 0) of what cannot be read as one."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def out_of_range(torch_text):
    """Why this combination is not watched, in one line; None if it is in range."""
    python = sys.version_info[:2]
    if not PYTHON_RANGE[0] <= python <= PYTHON_RANGE[1]:
        return f"Python {python[0]}.{python[1]} is outside the supported range 3.10 to 3.13"
    minor = torch_version(torch_text)
    if not TORCH_RANGE[0] <= minor <= TORCH_RANGE[1]:
        return f"torch {torch_text} is outside the supported range 2.7 to 2.13"
    return None


def built_for_another(torch_text):
    """Why the extension may not be loaded with this torch, in one line; None if it may.

    Between minor versions torch's C++ classes change their layout: the extension may load and then read wrong memory.
    """
    try:
        from ._built_for import TORCH
    except ImportError:  # used from a source tree
        return None
    if torch_version(TORCH) == torch_version(torch_text):
        return None
    return f"the engine was built for torch {TORCH}, and this is torch {torch_text} (install finitude again)"


def clip_hook_names():
    """The functions of torch.nn.utils.clip_grad that apply a computed norm (private since 2.6, unchanged to 2.13)."""
    return "_clip_grads_with_norm_"


def step_cell(optimizer):
    """The closure cell that holds a class's own step inside the wrapper torch puts around it, or None."""
    step = getattr(type(optimizer), "step", None)
    for candidate in (step, getattr(step, "__wrapped__", None)):
        code = getattr(candidate, "__code__", None)
        closure = getattr(candidate, "__closure__", None)
        if code is None or closure is None or "func" not in code.co_freevars:
            continue
        return closure[code.co_freevars.index("func")]
    return None


def compiled_code_ran():
    """True if torch.compile made at least one graph in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"]["unique_graphs"] > 0


def run_eagerly():
    """From here compiled code runs op by op, until `end_eager` is given what this returns. None: nothing was compiled."""
    if not compiled_code_ran():
        return None
    import torch

    return torch.compiler.set_stance("force_eager")


def end_eager(stance):
    """Puts the stance of torch.compile back to what it was before `run_eagerly`."""
    if stance is not None:
        stance.__exit__(None, None, None)
