"""Which steps are dumped, and their files. A step begins when the step before it has returned from the optimizer, and
ends when its own has: what the optimizer does is part of it."""

from __future__ import annotations

import json
import os
import sys

from .. import _native
from ..base import control, dump_plan, pages
from ..base.config import UsageError, read_toml
from ..base.say import say
from ..program import ranks, sinks, step_wrapper
from ..program.module_calls import HEADER_BYTES, ModuleCalls
from ..program.state_format import DTYPES, as_safetensors, safetensors
from ..report import incident, kept_step
from . import native_callbacks
from .dump_shortfall import Shortfall
from .golden import Golden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

    from ..base.types import Config, Optimizer
    from ..report.document import Report
    from .control import Control

KEYS = ("dump", "steps", "only")  # of a control file
FRAME_BYTES = 1 << 16  # about what a dump takes without any record
MOST_BYTES = 255 << 20  # of a file: readers take 256 MiB


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
        self._shortfall = Shortfall(report, names_steps=not config.golden)
        self._steps = 0  # that have ended
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
        self._is_first, self._lacks_some = True, False

    @property
    def is_open(self) -> bool:
        return self._under_record is not None

    def created(self) -> None:
        """An optimizer is there: what follows is step 0 of its training."""
        if self.is_on and self._leader is None and self._under_record is None:
            self._take_plan(self._golden.plan(self._plan, ranks.world()[0]))
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
        self._steps = window["step"]
        self._shortfall.look_at_ranks()
        self._golden.look()
        if self._under_record is not None:
            self._end_dump(self._under_record[0], self._under_record[1])
        self._read_control(window["step"])
        self._begin_dump(window["step"])

    def at_end(self) -> None:
        """The program ends; the report is not yet written."""
        self._golden.close()
        if self.is_on:
            self._shortfall.begin(self._plan, self._steps)  # where no optimizer was made
            self._shortfall.tell(self._steps)

    def close(self) -> None:
        """The watch ends; the step that is under way is not dumped."""
        calls, self._under_record, self._calls, self.is_on = self._calls, None, None, False
        _native.drop_values()
        if calls is not None:
            calls.end()

    # -- one step ---------------------------------------------------------------------------------

    def _take_plan(self, plan):
        self._plan = plan
        self._shortfall.begin(plan, self._steps)

    def _begin_dump(self, step):
        plan = self._plan
        if not plan.kind or not plan.steps.has(step) or not plan.takes_rank(ranks.world()[0]):
            return
        if self._most and self._bytes_so_far + self._largest > self._most:
            self._stop(f"step {step} and later ones are not dumped")
            return
        self._under_record = step, self._alarms_so_far()
        if plan.with_operators and not self._keeps_trace:
            _native.trace_start()
        if plan.with_operators and plan.kind != "statistics":
            # Checksums, and of tensors their values; those that did not fit a filter would use up the room.
            most = max(1, self._room()) if plan.kind == "tensors" else 0
            _native.keep_values(plan.values("op"), plan.values("module"), plan.values("phase"), most)
        if plan.with_modules:
            self._calls = ModuleCalls(self._in_guard, plan, self._room())
            self._calls.begin()

    def _room(self) -> int:
        """Bytes that may still be written."""
        return max(0, self._most - self._bytes_so_far - FRAME_BYTES) if self._most else sys.maxsize

    def _stop(self, what):
        """--dump-mb is reached."""
        self.is_on = False
        bounded = f"{what}: --dump-mb {self._most >> 20}"
        self._report.add_not_watched(bounded)
        say(
            f"finitude: {bounded} is reached after {self._bytes_so_far >> 20} MB; dump fewer steps, or less of each "
            "(--dump-only)\n"
        )

    def _alarms_so_far(self):
        return len(self._report.alarms) + self._report.alarms_left_out

    def _end_dump(self, step, alarms):
        calls, self._under_record, self._calls = self._calls, None, None
        if calls is not None:
            calls.end()
        if self._alarms_so_far() != alarms:
            _native.drop_values()  # the step ran a second time, and what was recorded is of both
            say(f"finitude: step {step} is not dumped: it is an alarm, and the report has what was found\n")
            return
        self._write_dump(step, calls, self._operators() if self._plan.with_operators else None)

    def _operators(self):
        """The trace of a step is taken, wherever the dump is written."""
        if self._keeps_trace:
            return _native.last_step()
        _native.trace_stop()
        for optimizer in sinks.watched_optimizers():
            kept_step.name_memory(optimizer)
        found = _native.take_step()
        _native.trace_clear()
        return found

    # -- files ------------------------------------------------------------------------------------

    def _write_dump(self, step, calls, operators):
        """calls, operators: what was recorded, None for neither. Where there are both, a second file has the operators,
        next to that of the modules."""
        folder = self._report.run_directory()
        if folder is None:
            self.is_on = False
            return
        seen, records, lacks, parts = [], 0, [], {}
        if calls is not None:
            calls.read_devices()
            seen, records, lacks = calls.seen, len(calls.records), calls.lacks()
            parts[".json"] = b"[" + b",".join(calls.records) + b"]"
            if calls.values:
                parts[".safetensors"] = as_safetensors(calls.values)
        if operators is not None:
            kinds, rows, values, written, without = self._rows(operators, sum(map(len, parts.values())))
            seen, records = [*seen, *kinds], records or written
            lacks += without
            name = "-operators" if calls is not None else ""
            parts[f"{name}.json"] = rows
            if values:
                parts[f"{name}.safetensors"] = values
        if lacks and not self._lacks_some:
            self._lacks_some = True
            self._report.add_not_watched(f"step {step} is not dumped whole, without {', '.join(lacks)}")
        document = {**self._report.document(), "alarms": [], "advisories": []}
        document.pop("trace", None)  # of an alarm
        self._write_files(step, folder, document, parts, records, bool(lacks))
        self._shortfall.dumped(step, seen, records)
        self._is_first = False

    def _rows(
        self, operators: _native.DumpedStep, size: int
    ) -> tuple[list[dict[str, Any]], bytes, bytes, int, list[str]]:
        """([kind of operator], JSON of those that are wanted, their values, how many, what is missing). size: bytes
        that are taken by other files of the step."""
        plan = self._plan
        kinds, of_ops = operators.kinds()
        inside = dump_plan.Scope(plan.scope()).of_operators(kinds[i] for i in of_ops)
        taken = list(map(plan.takes, kinds))
        chosen = [at for at, i in enumerate(of_ops) if inside[at] and taken[i]]
        sides = plan.has_side("inputs"), plan.has_side("outputs")
        room = max(0, min(self._room() - size, MOST_BYTES))
        rows, written, kept = operators.json(chosen, sides, plan.with_stacks, incident.MAX_OPS, room)
        lacks = []
        if missing := len(chosen) - written:
            beyond = "--dump-mb" if room < MOST_BYTES else f"{MOST_BYTES >> 20} MB of a file"
            beyond = f"{incident.MAX_OPS:,}" if written == incident.MAX_OPS else beyond
            lacks.append(f"{missing:,} operations beyond {beyond}")
        if operators.is_truncated():
            lacks.append("the operations at its end, more than the recorder holds")
        values, without = self._values(kept, self._room() - size - len(rows))
        if without := without + operators.without_values():
            lacks.append(f"{without:,} values of operators beyond --dump-mb")
        return kinds, rows, values, written, lacks

    def _values(self, values: list[tuple[str, torch.dtype, list[int], bytes]], room: int) -> tuple[bytes, int]:
        """(a file of them, of how many there was no room). room: bytes that it may have."""
        fit, without = [], 0
        for name, dtype, shape, content in values:
            if dtype in DTYPES:
                size = len(name) + HEADER_BYTES + len(content)
                if size > room:
                    without += 1
                else:
                    room -= size
                    fit.append((name, DTYPES[dtype], shape, content))
        return safetensors(fit) if fit else b"", without

    def _write_files(self, step, folder, document, parts, records, lacks_some):
        """parts: {end of the file's name: what it holds, of a JSON file the operations}."""
        head = json.dumps(document, allow_nan=False).encode()[:-1] + b', "trace": {"ops": '
        tail = b', "truncated": true}}' if lacks_some else b"}}"
        path = os.path.join(folder, "dumps", f"step-{step:06d}")
        size = 0
        for end, content in parts.items():
            content = head + content + tail if end.endswith(".json") else content
            size += len(content)
            if not pages.write(path + end, content):
                self.is_on = False
                return
        self._bytes_so_far += size
        self._largest = max(self._largest, size)
        if self._is_first and not self._config.quiet:
            say(
                f"finitude: step {step} is dumped: {path}.json ({records} records, {size / 1e6:.1f} MB"
                f"{self._estimate(step, size)}); "
                "`finitude dump FILE` prints it, `finitude diff A B` compares two\n"
            )
        self._golden.compare(step, path + ".json")

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
            self._take_plan(dump_plan.parse(kind, steps, only, step))
        except (ValueError, UsageError, OSError) as e:
            say(f"finitude: {self._control} is not obeyed: {e}\n")

    def _read_run_control(self, step):
        asked = self._run_control.asked()
        kind, steps, only = (asked.get(key, default) for key, default in zip(control.DUMP, self._defaults()))
        wanted = kind, steps, only, asked.get(control.ASKED, "")
        if wanted != self._asked_before and (asked or any(self._asked_before)):
            self._take_plan(dump_plan.parse(kind, steps, only, step))
        self._asked_before = wanted

    def _defaults(self):
        return self._config.dump or "off", self._config.dump_steps, self._config.dump_only
