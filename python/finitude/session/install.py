"""Puts the engine's C functions where torch will call them, and takes them out again."""

from __future__ import annotations

import functools
import os
import random
import sys
import types

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from .. import _native
from ..base import _places, compat, family, skip_list
from ..base.patches import Patches
from ..effects import channels, fork_dry_run
from ..program import signals, sinks, skip_rows, step_wrapper
from . import checkpoint_guard, native_callbacks, rank_checks, rollback, shared_signals, step_calls, step_dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_patches = Patches()
_handles = []
_installed = False
_fork_hook = False
_wait_for_training = None  # called in a process that this one forks, where its kind is watched


def _after_fork():
    if fork_dry_run.is_under_way():
        _native.let_go_of_ring()
        return
    # A forked child (a DataLoader worker, a subprocess) is not watched by its parent's recorder.
    _native.set_on(False)
    _native.trace_stop()
    _native.tape_stop()
    _native.let_go_of_ring()
    session, native_callbacks.session = native_callbacks.session, None
    if session is not None:
        session.ending.forked()
        session.shared_signals.forked()
    # After what ends the watch: an exception in these ends this function.
    signals.let_go()
    channels.forget()
    if session is not None and _wait_for_training is not None and family.found() is not None:
        _wait_for_training(forked=True)


def _wrap_created(original):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        native_callbacks.on_created(self)

    return __init__


def _wrap_restored(original):
    """A copy of an optimizer, or one out of a file, comes about without __init__. It may be kept as a backup only, so
    it counts as an optimizer with its first step. `load_state_dict` calls this as well."""

    @functools.wraps(original)
    def __setstate__(self, state):
        original(self, state)
        if not _native.is_registered(self) and "param_groups" in self.__dict__:
            native_callbacks.on_restored(self)

    return __setstate__


def _wrap_loaded(original):
    """What it writes into buffers is no part of the step that comes: where that is skipped, it stays."""

    @functools.wraps(original)
    def load_state_dict(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        _native.state_loaded()
        return result

    return load_state_dict


def _wrap_exchange(original):
    """What a collective operation writes leaves the version of a gradient as it was: the step reads it again."""

    @functools.wraps(original)
    def exchange(self, *args, **kwargs):
        for written in args[:1]:
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if type(tensor) is torch.Tensor:
                    tensor.data  # noqa: B018  as where a program writes by way of it
        return original(self, *args, **kwargs)

    return exchange


def _watch_exchanges():
    """Not those that DistributedDataParallel issues: they are over when the gradients are read."""
    groups = sys.modules.get("torch._C._distributed_c10d")
    of = getattr(groups, "ProcessGroup", None)
    for name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base"):
        if (original := getattr(of, name, None)) is not None:
            _patches.set(of, name, _wrap_exchange(original))


def install(wait_for_training: Callable[..., Any] | None = None) -> None:
    """Idempotent. Nothing is patched twice; `uninstall` leaves no trace. wait_for_training(forked=True) is called in
    each process that this one forks from now on, where the children of the run are watched."""
    global _installed, _fork_hook, _wait_for_training
    _wait_for_training = wait_for_training
    if _installed:
        _native.set_on(True)
        return
    autograd, clip = torch.autograd, torch.nn.utils.clip_grad
    norm_name = compat.clip_hook_names()
    backward = autograd.__dict__["_engine_run_backward"]
    _native.configure(native_callbacks, backward, clip.__dict__[norm_name])
    _patches.set(autograd, "_engine_run_backward", _native.engine_run_backward)
    _patches.set(clip, norm_name, _native.clip_grads_with_norm)
    _native.set_clip_value(clip.clip_grad_value_)
    _patches.set(clip, "clip_grad_value_", _native.clip_grad_value)
    _patches.set(torch.nn.utils, "clip_grad_value_", _native.clip_grad_value)
    _patches.set(torch.optim.Optimizer, "__init__", _wrap_created(torch.optim.Optimizer.__init__))
    _patches.set(torch.optim.Optimizer, "__setstate__", _wrap_restored(torch.optim.Optimizer.__setstate__))
    _patches.set(torch.nn.Module, "load_state_dict", _wrap_loaded(torch.nn.Module.load_state_dict))
    scaler = torch.amp.GradScaler
    names = ("scale", "step", "unscale_")
    for name, method in zip(names, _native.scaler_methods(*(scaler.__dict__[name] for name in names))):
        _patches.set(scaler, name, method)
    iterator = dataloader._BaseDataLoaderIter
    iter_method, next_method, index_method = _native.loader_methods(
        dataloader.DataLoader.__dict__["__iter__"], iterator.__dict__["__next__"], iterator.__dict__["_next_index"]
    )
    _patches.set(dataloader.DataLoader, "__iter__", iter_method)
    _patches.set(iterator, "__next__", next_method)
    _patches.set(iterator, "_next_index", index_method)
    _watch_exchanges()
    _skip_rows()
    _quarantine()
    _handles.append(register_optimizer_step_pre_hook(_native.optimizer_pre_hook))  # the first: see replace_gate_hook
    if native_callbacks.session is not None and native_callbacks.session.rollback.is_on:
        _handles.append(register_optimizer_step_pre_hook(rollback.before_step))
        _handles.append(register_optimizer_step_post_hook(rollback.after_step))
    if native_callbacks.session is not None and native_callbacks.session.rank_checks.is_on:
        call_before_steps(rank_checks.before_step)
    if native_callbacks.session is not None and native_callbacks.session.shared_signals.is_on:
        call_before_steps(shared_signals.before_step)
    if native_callbacks.session is not None and native_callbacks.session.dumps.is_on:
        _handles.append(register_optimizer_step_pre_hook(step_dumps.before_step))
        _handles.append(register_optimizer_step_post_hook(step_dumps.after_step))
    _native.set_python_random(random._inst)
    _native.set_places(
        _places.library_prefixes(),
        torch._C.TensorBase,
        [dataloader._BaseDataLoaderIter],
        [torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__],
        torch.optim.Optimizer,
    )
    watch_imported()
    if not _fork_hook:
        os.register_at_fork(after_in_child=_after_fork)
        _fork_hook = True
    _native.watch_checks(True)
    _installed = True
    _native.set_on(True)


def call_before_steps(hook: Callable[..., None]) -> None:
    """From now on until `uninstall`, before each step of any optimizer, after the gate. Once for each hook."""
    if hook not in step_wrapper.hooks:
        step_wrapper.hooks.append(hook)
        compat.skip_in_dynamo(hook)
        _handles.append(register_optimizer_step_pre_hook(hook))


def replace_gate_hook(hook: Callable[..., Any], of_scaler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """That hook, which calls the gate's own, is called in the place of it. The place is kept: torch may be going over
    its hooks now, and our hooks after it rely on the order. of_scaler: makes what is called in the place of the gate's
    GradScaler.step of that."""
    scaler = torch.amp.GradScaler
    if _installed and type(scaler.__dict__["step"]) is not types.FunctionType:
        _patches.set(scaler, "step", of_scaler(scaler.__dict__["step"]))
    compat.skip_in_dynamo(hook)
    handle: Any = _handles[0] if _handles else None
    hooks = handle.hooks_dict_ref() if handle is not None else None
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = hook


def _skip_rows():
    """With --skip-rows: loaders that the program makes from here on obey the list."""
    session = native_callbacks.session
    if session is None or not session.config.skip_rows:
        return
    lists = session.part(skip_list.read, session.config.skip_rows)
    if lists is not None:
        skips = skip_rows.SkipsRows(session.config.skip_rows, lists, bool(session.config.quiet or session.target))
        skips.begin()
        _patches.set(dataloader.DataLoader, "__init__", skips.wrapped(dataloader.DataLoader.__init__))


def _quarantine():
    """With --checkpoints quarantine: a checkpoint that is there is not renamed into the place of a good one."""
    session = native_callbacks.session
    quarantine = session.checkpoint_guard.quarantine if session is not None else None
    if quarantine is not None:
        for name in ("replace", "rename"):
            _patches.set(os, name, quarantine.replaces(getattr(os, name)))


def watch_imported() -> None:
    """What is imported by now, of libraries that the recorder looks into."""
    watch_numpy()
    checkpoint_guard.watch(_patches)
    watch_frameworks()
    watch_queues()


def watch_numpy() -> None:
    """numpy's global generator, if numpy is imported: where its state lies."""
    numpy: Any = sys.modules.get("numpy")
    try:
        bits = numpy.random.mtrand._rand._bit_generator
        _native.set_numpy_state_address(bits.ctypes.state_address if type(bits).__name__ == "MT19937" else 0)
    except (AttributeError, ImportError):
        _native.set_numpy_state_address(0)


def watch_frameworks() -> None:
    """The frameworks that are imported by now: what they call for a batch is a unit of work."""
    step_calls.watch_frameworks(_patches)


def watch_queues() -> None:
    """The classes of queues and connections that are imported by now."""
    channels.watch(_patches)


def uninstall() -> None:
    global _installed
    _native.set_on(False)
    _native.set_tape_level(0)
    _native.set_trace_level(False)
    _native.forget_verified_steps()
    _native.first_step_over()
    _native.trace_stop()
    _native.watch_checks(False)
    _native.set_undo_budget(0)
    _native.set_jump_budget(0, 0.0)
    _native.let_go()
    _native.leave_devices()
    while _handles:
        _handles.pop().remove()
    if native_callbacks.session is not None:
        native_callbacks.session.dumps.close()  # its hooks of modules
        native_callbacks.session.shared_signals.close()
    _patches.undo()
    channels.unwatch()
    sinks.named.clear()
    step_wrapper.release()
    _installed = False
