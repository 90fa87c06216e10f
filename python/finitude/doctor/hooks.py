"""Puts the observers where torch calls. The process ends with the look; nothing is taken out again."""

from __future__ import annotations

import collections
import functools
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import random_calls, wiring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import DoctorLook


def install(look: DoctorLook) -> None:
    def over(owner, name, make):
        original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))
        return getattr(owner, name)

    called = wiring.around(look)
    over(torch.nn.Module, "__call__", lambda f: lambda m, *a, **k: called(f, m, a, k))
    over(torch.autograd, "_engine_run_backward", lambda f: lambda *a, **k: look.backward(f, a, k))
    _watch_clipping(look, over)
    _watch_scaler(look, over)
    autocast = torch.amp.autocast_mode.autocast

    def entered(f):
        def __enter__(self):
            out = f(self)
            look.looking(look.autocast, self, True, torch.is_grad_enabled())
            return out

        return __enter__

    def left(f):
        def __exit__(self, *a):
            look.looking(look.autocast, self, False, False)
            return f(self, *a)

        return __exit__

    over(autocast, "__enter__", entered)
    over(autocast, "__exit__", left)

    def made(f):
        def __init__(self, *a, **k):
            f(self, *a, **k)
            look.looking(look.wiring.made, self)

        return __init__

    over(torch.optim.Optimizer, "__init__", made)
    register_optimizer_step_pre_hook(lambda o, a, k: look.looking(look.before_step, o))
    register_optimizer_step_post_hook(lambda o, a, k: look.looking(look.after_step, o))

    def eager(f):
        def compile(*a, **k):
            torch.compiler.set_stance("force_eager")  # what a compiled region computes is not seen from here
            return f(*a, **k)

        return compile

    over(torch, "compile", eager)

    _watch_loaders(look, over)
    _watch_precision(look, over)
    _watch_seeds(look, over)
    if look.random is not None:
        random_calls.watch(look)


def _watch_seeds(look, over):
    def seeds(f):
        def manual_seed(seed):
            look.looking(look.batches.seeded, seed)
            if look.random is not None:
                look.looking(look.random.note, f"torch.manual_seed({seed})", "torch, all defaults")
            return f(seed)

        return manual_seed

    torch.manual_seed = over(torch.random, "manual_seed", seeds)


def _watch_loaders(look, over):
    """Batches, and of which samples they are made: workers are asked ahead, and give their batches in that order,
    or, where they may give them in any, of samples that are not known here."""
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    asked = weakref.WeakKeyDictionary()

    def asks(f):
        def _next_index(self):
            index = f(self)
            asked.setdefault(self, collections.deque()).append(index if isinstance(index, (list, tuple)) else ())
            return index

        return _next_index

    def fetched(f):
        def __next__(self):
            batch = f(self)
            waiting = asked.get(self) if getattr(self, "_in_order", True) else None
            indices = waiting.popleft() if waiting else ()
            look.looking(look.batch, batch, indices)
            look.looking(look.batches.given, self, batch, indices)
            return batch

        return __next__

    def begins_anew(f):
        def _reset(self, *a, **k):
            asked.pop(self, None)
            look.looking(look.batches.begins, self)
            return f(self, *a, **k)

        return _reset

    for name, make in (("_next_index", asks), ("__next__", fetched), ("_reset", begins_anew)):
        over(iterator, name, make)


def _watch_precision(look, over):
    """Who sets TF32 by its old names, and who by those of torch 2.9: what torch itself can be asked of raises where
    only the new are used."""

    def reporting(name, age):
        def make(f):
            def setter(*a):
                if a and a[-1] != "none":  # what a context manager of torch puts back
                    look.looking(
                        lambda: look.event("precision", age=age, name=name.removeprefix("_set_"), value=str(a[-1]))
                    )
                return f(*a)

            return setter

        return make

    for name, age in (
        ("_set_float32_matmul_precision", "old"),
        ("_set_cublas_allow_tf32", "old"),
        ("_set_fp32_precision_setter", "new"),
    ):
        if hasattr(torch._C, name):
            over(torch._C, name, reporting(name, age))


def _listed(parameters):
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _watch_clipping(look, over):
    clip = torch.nn.utils.clip_grad

    def norm(f):
        def clip_grad_norm_(parameters, max_norm, norm_type=2.0, *a, **k):
            parameters = _listed(parameters)
            look.looking(look.before_clip, parameters)
            out = f(parameters, max_norm, norm_type, *a, **k)
            look.looking(look.clipped, parameters, out, max_norm, "norm", norm_type)
            return out

        return clip_grad_norm_

    def given(f):
        def clip_grads_with_norm_(parameters, max_norm, total_norm, *a, **k):
            parameters = _listed(parameters)
            look.looking(look.before_clip, parameters)
            look.looking(look.clipped, parameters, total_norm, max_norm, "norm", 0.0)
            return f(parameters, max_norm, total_norm, *a, **k)

        return clip_grads_with_norm_

    def value(f):
        def clip_grad_value_(parameters, clip_value, *a, **k):
            parameters = _listed(parameters)
            look.looking(look.clipped, parameters, None, clip_value, "value")
            return f(parameters, clip_value, *a, **k)

        return clip_grad_value_

    for name, make in (("clip_grad_norm_", norm), ("clip_grad_value_", value)):
        setattr(torch.nn.utils, name, over(clip, name, make))
    if hasattr(torch.nn.utils, "clip_grads_with_norm_"):  # only the public name: clip_grad_norm_ calls the other
        over(torch.nn.utils, "clip_grads_with_norm_", given)


def _watch_scaler(look, over):
    scaler = torch.amp.GradScaler

    def reporting(what):
        def make(f):
            def method(self, *a, **k):
                if not self._enabled:
                    return f(self, *a, **k)
                optimizer = a[0] if what in ("unscale_", "scaler.step") and a else None
                look.looking(look.scaler_called, what, self, optimizer)
                look.scaler_depth += 1
                try:
                    return f(self, *a, **k)
                finally:
                    look.scaler_depth -= 1

            return method

        return make

    for name, what in (("scale", "scale"), ("unscale_", "unscale_"), ("step", "scaler.step"), ("update", "update")):
        over(scaler, name, reporting(what))
