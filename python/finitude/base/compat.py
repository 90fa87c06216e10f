"""Everything that differs between versions of Python and torch, in one place (C++: python_compat.h, python_bytecode.h
of src/pyhost)."""

from __future__ import annotations

import functools
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from types import CellType, FrameType
    from typing import Any

PYTHON_RANGE = ((3, 10), (3, 13))
TORCH_RANGE = ((2, 7), (2, 15))
# Whether frames that a second run put back to an earlier line may be traced line by line. From Python 3.12 on a trace
# rewrites the code of a frame, which has not been tested there.
TRACES_REWOUND_FRAMES = sys.version_info < (3, 12)
ONLY_COMPILED = "it fails only when compiled, or with the random numbers that compiled code draws"


def torch_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as '2.13.0+cpu'; (0, 0) of what cannot be read as one."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def out_of_range(torch_text: str) -> str | None:
    """Why this combination is not watched, in one line; None if it is in range."""
    python = sys.version_info[:2]
    if not PYTHON_RANGE[0] <= python <= PYTHON_RANGE[1]:
        return f"Python {python[0]}.{python[1]} is outside the supported range 3.10 to 3.13"
    minor = torch_version(torch_text)
    if not TORCH_RANGE[0] <= minor <= TORCH_RANGE[1]:
        return f"torch {torch_text} is outside the supported range 2.7 to 2.15"
    return None


def clip_hook_names() -> str:
    """The functions of torch.nn.utils.clip_grad that apply a computed norm (private since 2.6, unchanged to 2.15)."""
    return "_clip_grads_with_norm_"


# Globals, as the compiler looks up only those in what it traces here: its own switch, once it is loaded, and functions.
comptime = None
_instead = []


def _break_unless_forbidden(context):
    if not getattr(context._i_will_not_complain_if_bc_breaks_InstructionTranslator(), "one_graph", True):
        context.graph_break()


@functools.cache
def skip_in_dynamo(function: Callable[..., Any], instead: Callable[..., Any] | None = None) -> None:
    """What torch.compile makes of finitude's function in a compiled step: a break of the graph, where it is called as
    ever; where the program forbids breaks (fullgraph), `instead` or nothing, and that step is not watched. Without this
    torch would warn on stderr, or end the program. Only once an optimizer has imported the compiler."""
    global comptime
    if "torch._dynamo" not in sys.modules:
        return
    try:
        from torch._dynamo.comptime import comptime
        from torch._dynamo.decorators import substitute_in_graph
    except ImportError:
        return

    place = len(_instead)
    _instead.append(instead)

    def in_graph(*args, **kwargs):
        comptime(_break_unless_forbidden)
        return _instead[place](*args, **kwargs) if _instead[place] is not None else None

    try:
        substitute_in_graph(function, skip_signature_check=True)(in_graph)
    except (TypeError, ValueError):  # an older torch, or done before
        return


@functools.cache
def _hooked_step_code():
    """The code of the wrapper that torch puts around every optimizer's step (unchanged from 2.0 to 2.15)."""
    import torch

    return torch.optim.Optimizer.profile_hook_step(lambda: None).__code__


def step_cell(kind: type) -> CellType | None:
    """The closure cell that holds the class's own step inside the wrapper torch puts around it, or None."""
    step: Any = getattr(kind, "step", None)
    code: Any = _hooked_step_code()
    while step is not None:
        if getattr(step, "__code__", None) is code and "func" in code.co_freevars:  # type: ignore[union-attr]
            return step.__closure__[code.co_freevars.index("func")]  # type: ignore[union-attr]
        step = getattr(step, "__wrapped__", None)
    return None


def compiled_code_ran() -> bool:
    """True if torch.compile made at least one graph in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"]["unique_graphs"] > 0


def hooks_with_kwargs() -> dict[str, bool]:
    """Options of torch.nn's global forward hook, so that it is called with keyword arguments where torch can do so."""
    import inspect

    from torch.nn.modules.module import register_module_forward_hook

    known = inspect.signature(register_module_forward_hook).parameters
    return {"with_kwargs": True} if "with_kwargs" in known else {}


def run_eagerly() -> Any:
    """From here compiled code runs op by op, until `end_eager` is given what this returns. None: nothing was
    compiled."""
    if not compiled_code_ran():
        return None
    import torch

    return torch.compiler.set_stance("force_eager")


def end_eager(stance: Any) -> None:
    """Puts the stance of torch.compile back to what it was before `run_eagerly`."""
    if stance is not None:
        stance.__exit__(None, None, None)


def abort_groups() -> None:
    """Operations that wait for other ranks fail now, in all process groups. Where torch cannot do that (2.7),
    nothing."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    for group in list(getattr(getattr(module, "_world", None), "pg_map", ())):
        try:
            group.abort()
        except (AttributeError, RuntimeError, ValueError):
            continue


def group_store() -> Any:
    """The store through which the ranks of the default process group met, or None (private name, unchanged 2.7 to
    2.13)."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return module._get_default_store()
    except (AttributeError, ValueError, KeyError, RuntimeError):
        return None


def process_groups() -> list[tuple[str, str, str, list[int]]]:
    """(name, description, backend, ranks of the run) of each process group that this process is in. Private names,
    unchanged 2.7 to 2.15; nothing where torch has others."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    found = []
    try:
        for group, name in list(module._world.pg_names.items()):
            backend, ranks = module._world.pg_map[group][0], module._world.pg_group_ranks[group]
            if backend == "undefined":  # one for each type of device
                backend = module._world.pg_backend_config[group]
            description = getattr(group, "group_desc", "") or ""
            found.append((str(name), str(description), str(backend), sorted(ranks, key=ranks.__getitem__)))
    except (AttributeError, KeyError, TypeError, RuntimeError):
        return []
    return found


def set_names(frame: FrameType, names: Mapping[str, Any], kinds: Container[type]) -> None:
    """Binds names of a suspended generator's frame again. kinds: of values that `f_locals` may still hold before
    3.13, where it is a dict that lives as long as the frame."""
    held = frame.f_locals
    held.update(names)
    if sys.version_info >= (3, 13):
        return
    import ctypes

    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    for name in [k for k, v in held.items() if type(v) not in kinds]:
        del held[name]
