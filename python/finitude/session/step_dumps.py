"""Which steps are dumped, and their files. A step begins when the step before it has returned from the optimizer, and
ends when its own has: what the optimizer does is part of it."""

from __future__ import annotations

import json
import os

from .. import _native
from ..base import control, dump_plan, pages
from ..base.config import UsageError, read_toml
from ..base.say import say
from ..program import ranks, step_wrapper
from ..program.module_calls import ModuleCalls
from ..program.state_format import as_safetensors
from ..report import incident
from . import native_callbacks
from .golden import Golden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..base.types import Config, Optimizer
    from ..report.document import Report
    from .control import Control

MOST_NAMES = 8  # of what is there, where a filter fits nothing
KEYS = ("dump", "steps", "only")  # of a control file


def before_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """torch calls it before each step of any optimizer."""
    session = native_callbacks.session
    if session is not None and session.dumps.is_open and os.getpid() == session.pid:
        session.part(session.dumps.add_gradients, optimizer)


def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """The same after each step."""
    session = native_callbacks.session
    if session is not None and os.getpid() == session.pid:
        session.part(session.dumps.stepped, optimizer)


class StepDumps:
    def __init__(
        self, config: Config, report: Report, run_control: Control, in_guard: Callable[..., Any], explains: bool
    ):
        """run_control: what `finitude ctl` asks for, where there is no --dump-control. explains: this process explains
        a step of another one, and dumps nothing."""
        self._report, self._in_guard, self._config = report, in_guard, config
        self._run_control, self._asked_before = run_control, ("", "", "", "")
        self._most = config.dump_mb << 20
        self._golden = Golden("" if explains else config.golden, report)
        self._plan = dump_plan.parse(config.dump, config.dump_steps, config.dump_only)
        self._control = config.dump_control
        self._read_at = 0  # time of the control file's last change that was read
        self.is_on = bool(config.dump or self._control or config.golden) and not explains and not config.redact
        if self.is_on:
            step_wrapper.hooks += [before_step, after_step]
        self._keeps_trace = config.level == "trace"
        self._leader: int | None = None  # ordinal of the optimizer whose steps are counted
        self._under_record: tuple[int, int] | None = None  # number of the step that is recorded; alarms before it
        self._calls: ModuleCalls | None = None
        self._bytes_so_far = self._largest = 0  # bytes
        self._has_spoken = False

    @property
    def is_open(self) -> bool:
        return self._under_record is not None

    def created(self) -> None:
        """An optimizer is there: what follows is step 0 of its training."""
        if self.is_on and self._leader is None and self._under_record is None:
            self._plan = self._golden.plan(self._plan, ranks.world()[0])
            self._read_control(0)
            self._begin_dump(0)

    def add_gradients(self, optimizer: Optimizer) -> None:
        if self._calls is not None and not native_callbacks.runs_again() and _native.is_registered(optimizer):
            self._calls.add_gradients(optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """Called after each step of an optimizer, also one that was skipped."""
        if not self.is_on or native_callbacks.runs_again() or not _native.is_registered(optimizer):
            return
        window = _native.window(optimizer)
        if self._leader is None:
            self._leader = window["ordinal"]
        if window["ordinal"] != self._leader:
            return
        self._golden.look()
        if self._under_record is not None:
            self._end_dump(self._under_record[0], self._under_record[1])
        self._read_control(window["step"])
        self._begin_dump(window["step"])

    def compare_rest(self) -> None:
        """The program ends; the report is not yet written."""
        self._golden.close()

    def close(self) -> None:
        """The watch ends; the step that is under way is not dumped."""
        calls, self._under_record, self._calls, self.is_on = self._calls, None, None, False
        if calls is not None:
            calls.end()

    # -- one step ---------------------------------------------------------------------------------

    def _begin_dump(self, step):
        plan = self._plan
        if not plan.kind or not plan.steps.has(step) or not plan.takes_rank(ranks.world()[0]):
            return
        if self._most and self._bytes_so_far + self._largest > self._most:
            self.is_on = False
            say(
                f"finitude: step {step} and later ones are not dumped: --dump-mb {self._most >> 20} is reached after "
                f"{self._bytes_so_far >> 20} MB; dump fewer steps, or less of each (--dump-only)\n"
            )
            return
        self._under_record = step, self._alarms_so_far()
        if self._has_operators() and not self._keeps_trace:
            _native.trace_start()
        if plan.kind != "statistics":
            self._calls = ModuleCalls(self._in_guard, plan)
            self._calls.begin()

    def _has_operators(self):
        return self._plan.kind == "statistics" or self._plan.with_operators

    def _alarms_so_far(self):
        return len(self._report.alarms) + self._report.alarms_left_out

    def _end_dump(self, step, alarms):
        calls, self._under_record, self._calls = self._calls, None, None
        if calls is not None:
            calls.end()
        if self._alarms_so_far() != alarms:  # the step ran a second time, and what was recorded is of both
            say(f"finitude: step {step} is not dumped: it is an alarm, and the report has what was found\n")
            return
        found = self._operators() if self._has_operators() else []
        inside = dump_plan.Scope(self._plan.scope()).of_operators(found)
        operators = [record for record in inside if self._plan.takes(record)]
        seen = [*found, *(calls.seen if calls is not None else ())]
        for unmatched in self._plan.unmatched(seen) if not self._has_spoken else ():
            self._say_unmatched(unmatched, step, seen)
        if calls is None:
            self._write_dump(step, operators, {})
        else:
            self._write_dump(step, calls.records, calls.values, operators if self._plan.with_operators else None)

    def _operators(self):
        """The trace of a step is taken, wherever the dump is written."""
        stacks = self._plan.with_stacks
        if self._keeps_trace:
            return json.loads(_native.last_step_ops(incident.MAX_OPS, stacks) or "[]")
        _native.trace_stop()
        found = json.loads(_native.take_ops(incident.MAX_OPS, stacks))
        _native.trace_clear()
        return found

    def _say_unmatched(self, unmatched, step, found):
        key = unmatched.partition("=")[0].replace("-", "_")
        known = list(dict.fromkeys(str(record.get(key, "")) for record in found if record.get(key) not in ("", None)))
        more = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
        say(
            f"finitude: --dump-only {unmatched} fits nothing in step {step}; there are: "
            f"{', '.join(known[:MOST_NAMES])}{more}\n"
        )

    # -- files ------------------------------------------------------------------------------------

    def _write_dump(self, step, records, values, operators=None):
        """operators: for a second file, next to that of the modules."""
        folder = self._report.run_directory()
        if folder is None:
            self.is_on = False
            return
        document = {**self._report.document(), "alarms": [], "advisories": [], "trace": {"ops": records}}
        path = os.path.join(folder, "dumps", f"step-{step:06d}.json")
        content = json.dumps(document, allow_nan=False).encode()
        size = len(content)
        if not pages.write(path, content):
            self.is_on = False
            return
        if operators is not None:
            of_operators = json.dumps({**document, "trace": {"ops": operators}}, allow_nan=False).encode()
            size += len(of_operators)
            pages.write(path.removesuffix(".json") + "-operators.json", of_operators)
        if values:
            tensors = as_safetensors(values)
            size += len(tensors)
            pages.write(path.removesuffix(".json") + ".safetensors", tensors)
        self._bytes_so_far += size
        self._largest = max(self._largest, size)
        if not self._has_spoken and not self._config.quiet:
            say(
                f"finitude: step {step} is dumped: {path} ({len(records)} records, {size / 1e6:.1f} MB"
                f"{self._estimate(step, size)}); "
                "`finitude dump FILE` prints it, `finitude diff A B` compares two\n"
            )
        self._has_spoken = True
        self._golden.compare(step, path)

    def _estimate(self, step, size):
        """What the chosen steps after the first one will take, at its size in bytes, and whether the limit holds
        them."""
        follow = self._plan.steps.how_many_after(step)
        if follow == 0:
            return ""
        room = max(0, (self._most - self._bytes_so_far) // size) if self._most else None
        limit = f"--dump-mb {self._most >> 20} has room for about {room}"
        if follow is None:
            return f"; {limit} more" if room is not None else ""
        words = f"; the {follow} that follow: about {follow * size / 1e6:.1f} MB"
        return f"{words}, and {limit} of them" if room is not None and room < follow else words

    # -- the file that changes what is dumped -----------------------------------------------------

    def _read_control(self, step):
        if not self._control:
            self._read_run_control(step)
            return
        try:
            changed = os.stat(self._control).st_mtime_ns
        except OSError:
            return
        if changed == self._read_at:
            return
        self._read_at = changed
        try:
            table = read_toml(self._control) or {}
            if unknown := sorted(set(table) - set(KEYS)):
                raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(KEYS)}")
            kind, steps, only = (str(table.get(key, default)) for key, default in zip(KEYS, self._defaults()))
            self._plan = dump_plan.parse(kind, steps, only, step)
        except (ValueError, UsageError, OSError) as e:
            say(f"finitude: {self._control} is not obeyed: {e}\n")

    def _read_run_control(self, step):
        asked = self._run_control.asked()
        kind, steps, only = (asked.get(key, default) for key, default in zip(control.DUMP, self._defaults()))
        wanted = kind, steps, only, asked.get(control.ASKED, "")
        if wanted != self._asked_before and (asked or any(self._asked_before)):
            self._plan = dump_plan.parse(kind, steps, only, step)
        self._asked_before = wanted

    def _defaults(self):
        return self._config.dump or "off", self._config.dump_steps, self._config.dump_only
