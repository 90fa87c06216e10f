"""What people use instead, each as its own description says to use it. Every one only looks; none finds anything
here."""

import copy
import importlib.util
import json
import math
import random
import sys
import threading
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .arms import Arm


class FoundBad(Exception):
    """These trainings are healthy: a tool that speaks is used wrongly, and its time means nothing."""


class LossCheck(Arm):
    """`if not torch.isfinite(loss).item(): skip`, as NaNDetector.check_loss of KempnerForge does on one rank."""

    def check_loss(self, loss):
        if not torch.isfinite(loss).item():
            raise FoundBad("loss")


class IsfiniteLoop(Arm):
    """The loop of countless training scripts."""

    def __init__(self, job):
        self.parameters = job.parameters

    def check_gradients(self):
        for p in self.parameters:
            if p.grad is not None and not torch.isfinite(p.grad).all():
                raise FoundBad("gradient")


class ErrorIfNonfinite(Arm):
    """clip_grad_norm_ used as a check, with a norm that clips nothing."""

    def __init__(self, job):
        self.parameters = job.parameters

    def check_gradients(self):
        torch.nn.utils.clip_grad_norm_(self.parameters, 1e30, error_if_nonfinite=True)


class Capture(Arm):
    """Chaim Rand's NaNCapture: a copy of the batch and of the random states, one concatenation of all gradients."""

    def __init__(self, job):
        self.parameters = job.parameters

    def begin(self, x, y):
        import numpy

        self.batch = copy.deepcopy((x, y))
        self.state = {"torch": torch.get_rng_state(), "numpy": numpy.random.get_state(), "random": random.getstate()}

    def check_gradients(self):
        grads = [p.grad.view(-1) for p in self.parameters if p.grad is not None]
        if torch.isnan(torch.cat(grads)).any().item():
            raise FoundBad("gradient")


class ForwardHooks(Arm):
    """The forward-hook detector of Emmimal/pytorch-nan-detector with its defaults, rewritten from its description:
    every module, inputs and outputs, NaN and Inf; then the gradient norm of every parameter."""

    def __init__(self, job):
        self.model, self.lock, self.handles, self.batch, self.milliseconds = job.model, threading.Lock(), [], 0, []

    def enter(self):
        for name, module in self.model.named_modules():
            self.handles.append(module.register_forward_hook(self._hook(name)))

    def leave(self):
        while self.handles:
            self.handles.pop().remove()

    def begin(self, x, y):
        with self.lock:
            self.batch += 1

    @staticmethod
    def _tensors(value):
        if isinstance(value, torch.Tensor):
            return [value] if value.is_floating_point() else []
        if isinstance(value, (tuple, list)):
            return [t for item in value for t in ForwardHooks._tensors(item)]
        return []

    def _hook(self, name):
        def hook(module, inputs, output):
            started = time.perf_counter()
            with self.lock:
                batch = self.batch
            bad = [
                bool(torch.isnan(t).any().item()) or bool(torch.isinf(t).any().item())
                for value in (inputs, output)
                for t in self._tensors(value)
            ]
            if any(bad):
                raise FoundBad(f"{name} in batch {batch}")
            with self.lock:
                if len(self.milliseconds) < 1000:
                    self.milliseconds.append(1e3 * (time.perf_counter() - started))

        return hook

    def check_gradients(self):
        for _, module in self.model.named_modules():
            for _, p in module.named_parameters(recurse=False):
                if p.grad is not None and not math.isfinite(p.grad.detach().float().norm().item()):
                    raise FoundBad("gradient norm")


class Anomaly(Arm):
    """torch.autograd.set_detect_anomaly(True), with its check for NaN."""

    def enter(self):
        torch.autograd.set_detect_anomaly(True)

    def leave(self):
        torch.autograd.set_detect_anomaly(False)


class _EveryOp(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.is_floating_point() and not torch.isfinite(t).all():
                if "empty" not in func.__name__ and "_like" not in func.__name__:  # memory nobody has written yet
                    raise FoundBad(str(func))
        return out


class EveryOp(Arm):
    """A TorchDispatchMode that looks at what every single operation gave."""

    def enter(self):
        self.mode = _EveryOp()
        self.mode.__enter__()

    def leave(self):
        self.mode.__exit__(None, None, None)


class DebugUnderflowOverflow(Arm):
    """transformers.debug_utils.DebugUnderflowOverflow; it offers no way to take its hooks out again, so that is done
    here."""

    def __init__(self, job):
        from transformers.debug_utils import DebugUnderflowOverflow as Tool

        self.tool, self.model = Tool, job.model

    def enter(self):
        self.before = {module: dict(module._forward_hooks) for module in self.model.modules()}
        self.watching = self.tool(self.model)

    def leave(self):
        for module, hooks in self.before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)


class Msprobe(Arm):
    """mindstudio-probe, task statistics, level L1: every call of the API, forward and backward, to a dump. It patches
    the process for good when it is imported, so it is measured after everything else, never between."""

    def __init__(self, job, folder):
        from msprobe.pytorch import PrecisionDebugger

        config = folder / "msprobe.json"
        config.write_text(
            json.dumps(
                {
                    "task": "statistics",
                    "dump_path": str(folder / "dump"),
                    "rank": [],
                    "step": [],
                    "level": "L1",
                    "async_dump": False,
                    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
                }
            )
        )
        self.debugger, self.model = PrecisionDebugger(config_path=str(config)), job.model

    def begin(self, x, y):
        self.debugger.start(self.model)

    def end(self):
        self.debugger.stop()
        self.debugger.step()


# In the order of the page. In a process with finitude, one after the other at random; each gives an Arm for a Job.
IN_PROCESS = {
    "loss-check": ("loss check, `isfinite(loss).item()`", lambda job: LossCheck()),
    "error-if-nonfinite": ("`clip_grad_norm_(error_if_nonfinite=True)`", ErrorIfNonfinite),
    "isfinite-loop": ("`isfinite(p.grad).all()` per parameter", IsfiniteLoop),
    "capture": ("gradient check with capture (NaNCapture)", Capture),
    "forward-hooks": ("forward-hook detector", ForwardHooks),
    "anomaly": ("`set_detect_anomaly(True)`", lambda job: Anomaly()),
    "every-op": ("TorchDispatchMode, every op", lambda job: EveryOp()),
    "underflow-overflow": ("transformers DebugUnderflowOverflow", DebugUnderflowOverflow),
}
ALONE = {"msprobe": ("msprobe statistics L1 (not interleaved)", Msprobe)}
NEEDS = {"underflow-overflow": "transformers", "msprobe": "msprobe"}


def why_not(name):
    """Why this contender cannot be had here, or "". Does not import it."""
    package = NEEDS.get(name)
    if package is None or importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed (make bench-peers)"


def add_peers(folder):
    """Packages that only contenders need lie in a folder of their own, behind everything else."""
    if folder and folder not in sys.path:
        sys.path.append(folder)
