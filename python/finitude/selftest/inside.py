"""In the program's own process: lists the places of one step where a value can be injected, or injects one.

A place is (phase, op, line, module, and for backward the node and the forward op it belongs to), and the how many-th
time it is come across since an optimizer stepped last. It is counted again when the recorder runs the step a second
time, so that the value is put in again at the same op of the same step, as a fault of the program itself would be."""

from __future__ import annotations

import atexit
import json
import os

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from .. import _native
from ..effects import fork_dry_run
from ..errors import NonFiniteError
from ..program import optimizer_members, ranks
from ..program.tensor_stats import tensors_in
from ..session import native_callbacks
from .where import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ..base.types import Optimizer

KEYS = ("phase", "op", "file", "line", "module", "node", "forward", "name")
AFTER = 3  # steps to wait for an alarm after the value was put in
VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_active = []  # at most one Inside


def begin(path: str) -> None:
    """Carries out the order in that file, in this process. A file that is gone is no order."""
    try:
        with open(path, encoding="utf-8") as f:
            order = json.load(f)
    except OSError:
        return
    if not _active:
        fork_dry_run.off()  # what is put in is counted by hooks that a rehearsal has not
        _active.append(Inside(order))
        _active[0].install()


class Inside:
    def __init__(self, order):
        self.order, self.step = order, order["step"]
        self.place = order.get("place")
        self.counts = {}  # key of a place -> times come across in this segment
        self.listed = {}  # (key, steps) -> [times, elements]
        self.segment, self.generation = None, 0
        self.made = {}  # number of a backward node -> (forward op, Where)
        self.stepping = None  # the optimizer whose step is under way
        self.injected = []  # what was put in, the first time in each run of the step
        self.bad = set()  # kinds of sinks that are not finite
        self.fired = False
        self.written = False

    def install(self):
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        for kind in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
            self._wrap_loader(kind)
        atexit.register(self.write)
        _native.inject_start(self.at_end_of_op, self.step, self.step + 1)

    def _wrap_loader(self, kind):
        original = kind.__dict__["_next_data"]

        def _next_data(iterator):
            batch = original(iterator)
            self.at_batch(batch)
            return batch

        kind._next_data = _next_data

    # -- places ---------------------------------------------------------------------------------

    @staticmethod
    def steps() -> list[list[Any]]:
        return [list(s) for s in _native.inject_steps()]

    def is_mine(self, phase, steps):
        """Is this in the step that was asked for? What an optimizer computes in its step comes after it is counted."""
        furthest = max((s[2] for s in steps), default=0)
        return furthest == self.step + (phase == "optimizer")

    def come_across(self, place, elements):
        """The place as it is reported, with its number; None where it is not in the step."""
        steps = self.steps()
        if not self.is_mine(place["phase"], steps):
            return None
        segment = (json.dumps(steps), self.generation)
        if segment != self.segment:
            self.segment, self.counts, self.fired = segment, {}, False
        key = tuple(place[k] for k in KEYS)
        number = self.counts[key] = self.counts.get(key, 0) + 1
        if self.place is None:
            listed = self.listed.setdefault((key, segment[0]), [0, elements])
            listed[0] = max(listed[0], number)
            return None
        return {**place, "steps": steps, "number": number, "rank": ranks.world()[0]}

    def is_wanted(self, place):
        wanted = self.place
        return (
            not self.fired
            and all(place[k] == wanted[k] for k in KEYS)
            and place["number"] == wanted["number"]
            and place["steps"] == wanted["steps"]
            and place["rank"] == self.order["rank"]
        )

    def element(self, elements):
        return min(elements - 1, int(self.order["element"] * elements))

    def fire(self, place, **more):
        self.fired = True
        self.injected.append({**place, **more})
        self.write()

    # -- what torch and the engine report ---------------------------------------------------------

    def at_end_of_op(self, op, phase, node, node_key, makes, results, generation):
        """See inject_torch.h."""
        at, self.generation = here(1), generation
        if at.ours or at.optimizer and self.stepping is None:
            return None  # what the recorder itself does, as the copies that it makes before a step
        for number in makes:
            if len(self.made) < 1_000_000:
                self.made.setdefault(number, (op, at))
        if not any(results):
            return None
        if phase == "forward" and at.optimizer:
            phase = "optimizer"
        forward = ""
        if node is not None and (at.engine or not at.line):
            forward, at = self.made.get(node_key, ("", at))
        place = {
            "phase": phase,
            "op": op,
            "file": at.file,
            "line": at.line,
            "module": at.module,
            "node": node or "",
            "forward": forward,
            "name": "",
        }
        place = self.come_across(place, sum(results))
        if place is None or not self.is_wanted(place):
            return None
        result = max(range(len(results)), key=results.__getitem__)
        element = self.element(results[result])
        self.fire(place, element=element, elements=results[result])
        return result, element, VALUES[self.order["value"]]

    def at_batch(self, batch):
        tensors = [t for t in tensors_in(batch, 4) if t.is_floating_point() and t.numel()]
        if not tensors:
            return
        at = here(2)
        place = {
            "phase": "data",
            "op": "",
            "file": at.file,
            "line": at.line,
            "module": "",
            "node": "",
            "forward": "",
            "name": "batch",
        }
        place = self.come_across(place, tensors[0].numel())
        if place is not None and self.is_wanted(place):
            element = self.element(tensors[0].numel())
            _native.inject_write(tensors[0], element, VALUES[self.order["value"]])
            self.fire(place, element=element, elements=tensors[0].numel())

    def before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.stepping = optimizer
        if (
            self.injected
            and not _native.trace_on()
            and any(p.grad is not None and _is_bad(p.grad) for p in optimizer_members.parameters(optimizer))
        ):
            self.bad.add("gradient")

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.stepping = None
        steps = [s[2] for s in self.steps()]
        if self.step > 0 and max(steps) == self.step:
            self.at_state(optimizer)
        if self.injected and not _native.trace_on() and any(_is_bad(t) for _, t in _state(optimizer)):
            self.bad.add("parameter or state")
        if ranks.world()[0] != self.order["rank"]:
            return
        over = (
            min(steps) > self.step or max(steps) >= self.step + 2
        )  # each optimizer has taken it, or the first ones do no more
        if over if self.place is None else max(steps) > self.step + (AFTER if self.injected else 1):
            self.leave()

    def at_state(self, optimizer):
        """Between two steps: what lies there before the step begins."""
        for name, tensor in _state(optimizer):
            place = {
                "phase": "state",
                "op": "",
                "file": "",
                "line": 0,
                "module": "",
                "node": "",
                "forward": "",
                "name": name,
            }
            place = self.come_across(place, tensor.numel())
            if place is not None and self.is_wanted(place):
                element = self.element(tensor.numel())
                _native.inject_write(tensor, element, VALUES[self.order["value"]])
                self.fire(place, element=element, elements=tensor.numel())

    # -- the end --------------------------------------------------------------------------------

    def leave(self) -> NoReturn:
        """All that was asked for has been seen. The recorder writes its report as the process ends."""
        self.write()
        try:
            native_callbacks.session.weights.at_end()  # as where the program ends by itself
        except NonFiniteError:
            pass
        os._exit(0)

    def write(self) -> None:
        """What was seen, for the command: in a second process too, which is the same program."""
        if self.place is None:
            if self.written or ranks.world()[0] != self.order["rank"] or not self.listed:
                return
            self.written = True
            document: Any = [
                {**dict(zip(KEYS, key)), "steps": json.loads(steps), "count": count, "elements": elements}
                for (key, steps), (count, elements) in self.listed.items()
            ]
            name = "places.json"
        else:
            document = {"injected": self.injected, "bad": sorted(self.bad)}
            if not self.injected:
                return
            name = f"injected-{os.getpid()}.json"
        path = os.path.join(self.order["folder"], name)
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as f:
                json.dump(document, f)
            os.replace(path + ".tmp", path)
        except OSError:
            pass


def _state(optimizer):
    """(name, tensor) of parameters and of what the optimizer keeps, as far as they hold floating-point numbers."""
    for name, parameter in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
        yield name, parameter
        for key, value in (optimizer.state.get(parameter) or {}).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                yield f"{name}.{key}", value


def _is_bad(tensor):
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor.detach()).all())
