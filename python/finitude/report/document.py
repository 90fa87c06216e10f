"""The report document: assembled here, checked and rendered by the engine."""

from __future__ import annotations

import datetime
import errno
import json
import os
import sys
import time

import torch

from .. import _native
from ..base import alive, family, pages, say, secrets
from ..base.plain_json import is_plain
from ..program import ranks
from . import capsule_alarm, merge, run_facts
from .checkpoints import Checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..base.types import Alarm, Birth, Cause, Config, Document, Operation, Process, StepWarning
    from .on_event import Listeners

INNER = ("optimizer_ordinal", "advisory")  # of an alarm under way; no part of a report
OF_DISK = {number: "disk" for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)}
MOST_OF_A_KIND = 20  # advisories
MOST_WARNINGS = 1000
EVENT = ("step", "optimizer", "text")  # keys that every event has
FEW = 8  # alarms, after each of which the report is written whatever that takes
QUIET_SECONDS = 1.0  # at least, between two reports where no message to a person waits for one


def without_inner(alarm: Alarm) -> None:
    """Takes out what an alarm has only while it is under way (INNER)."""
    alarm.pop("optimizer_ordinal", None)
    alarm.pop("advisory", None)


class Report:
    def __init__(self, config: Config, script: str, command: Sequence[str], is_kept: bool = True):
        """is_kept: not that of a process that explains a step of another."""
        self.config, self.is_kept = config, is_kept
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.script, self.command = script, secrets.masked_words(command)
        self.by_watch = False  # the program called finitude.watch without `finitude run`
        self.alarms, self.advisories, self.not_watched, self.warnings = [], [], [], []
        self.alarms_left_out = 0
        self.elsewhere: list[tuple[Alarm, Any]] = []  # alarms of other machines, each with that of this rank
        self.unexplained: Alarm | None = None  # the alarm that a second run is to explain
        self.pid = os.getpid()  # a forked process has a report of its own
        self.complained = set()  # what was said once
        self.not_written = set()  # paths of reports that could not be
        self.saved_at, self.save_took = 0.0, 0.0
        self.steps_by_hand = 0  # of a program without an optimizer
        # Windows at the end, in a row, that no step applied; None: not at the end yet.
        self.unapplied: int | None = None
        self.done: dict[str, int] = {}  # by the policy: "skipped", "went_back", "lowered_rates"
        self.zero_steps = 0  # applied steps at the end, in a row, with only zero gradients, where there are few
        self.trace_ops: list[Operation] | None = None
        self.directory: str | None = None
        self._planned: str | None = None
        self._process: Process | None = None
        self._started: dict[str, Any] = {"optimizers": []}  # run.json
        self.place: Any = None  # makes the directory, where this process is one of several of a run
        self.failure = ""
        self.failures = []  # of our own: see session/failures.py
        self._checkpoints: Checkpoints | None = None  # those that the program wrote, where it wrote any
        self._event_file, self._is_ended = _native.EventFile(), False
        self._listeners: Listeners | None = None  # get each event after it is on disk, or where there is no disk
        if config.on_event:
            self.listen(None)

    def listen(self, function: Callable[[dict[str, Any]], Any] | None) -> None:
        """The command of --on-event, where there is one, and the function are called at each event from now on."""
        from .on_event import Listeners

        self._listeners = self._listeners or Listeners(self.config.on_event, self.complain)
        if function is not None:
            self._listeners.listen(function, lambda: self.unexplained is not None)

    def seconds(self) -> float:
        """Since the run began."""
        return (datetime.datetime.now(datetime.timezone.utc) - self.started).total_seconds()

    def begin(self, alarm: Alarm) -> None:
        """That alarm is being explained from here on. It is on disk by then: what explains it may end the process."""
        self.unexplained = alarm
        self._add_event("alarm", alarm, explained=False)
        self.save(is_shown=False)

    def forget_unexplained(self) -> None:
        """What is being explained is no alarm, or is reported by somebody else."""
        self.unexplained = None

    def take_unexplained(self) -> Alarm | None:
        """The alarm that was being explained, if any."""
        alarm, self.unexplained = self.unexplained, None
        return alarm

    def fail(self, why: str) -> None:
        """Nothing was watched, and why."""
        self.failure, self.unexplained = why, None

    def note_trace(self, ops: list[Operation] | None) -> None:
        self.trace_ops = ops

    def note_steps_by_hand(self, count: int) -> None:
        """Of a program without an optimizer."""
        self.steps_by_hand = count

    def note_last_steps(self, unapplied: int, by_scaler: int, zero: int) -> None:
        """Of the end of the run. unapplied: windows in a row that no step applied, by_scaler of them skipped by a
        GradScaler, which is said only where they are many. zero: applied steps in a row with only zero gradients."""
        is_said = unapplied > by_scaler or unapplied >= max(1, self.config.max_skips)
        self.unapplied, self.zero_steps = unapplied if is_said else 0, zero

    def make_at(self, place: Callable[[], str]) -> None:
        """place: makes the directory, where this process is one of several of a run."""
        self.place = place

    def add_alarm(self, alarm: Alarm) -> None:
        """Lists it; past the number that a report may hold, in the place of the one before."""
        self.unexplained = None
        alarm.setdefault("last_good", self.last_good_checkpoint(alarm))
        if self.config.redact and alarm.get("capsule"):
            alarm["capsule_redacted"] = True
        if len(self.alarms) < merge.MAX_ALARMS:
            self.alarms.append(alarm)
        else:
            self.alarms_left_out += 1
            self.alarms[-1] = alarm  # the newest is listed: it may be what ends the program
        self._add_event("alarm", alarm, explained=True, alarm={k: v for k, v in alarm.items() if k not in INNER})

    def warn(self, warning: StepWarning) -> None:
        """Lists what is noticed of a training whose values are still finite."""
        if len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(warning)
        self._add_event("warning", warning, **{k: v for k, v in warning.items() if k not in EVENT})

    def note_checkpoint(
        self,
        path: str,
        step: int | None,
        verdict: str,
        text: str,
        is_written: bool,
        has_weights: bool,
        kept: str | None = None,
    ) -> None:
        """Counts it. A bad one is an advisory as well: no alarm need have come before it. kept: where it is also."""
        self._checkpoints = self._checkpoints or Checkpoints()
        self._checkpoints.add(path, step, verdict, is_written, has_weights, kept)
        facts = {"path": path, "verdict": verdict, "written": is_written, "weights": has_weights}
        self._add_event("checkpoint", {"step": step, "text": text}, **facts)
        if verdict == "bad":
            self.advise("bad-checkpoint", step, text)

    def note_rollback(self, alarm: Alarm, to: int, lr_factor: float) -> None:
        """Training went back from that step to the state after step `to`."""
        of = {"step": alarm["step"], "optimizer": alarm["optimizer"], "text": alarm["action"]}
        self._add_event("rollback", of, to=to, lr_factor=lr_factor)

    def note_lowered_rate(self, alarm: Alarm, lr_factor: float) -> None:
        """The policy has lowered the learning rate at that step."""
        of = {"step": alarm["step"], "optimizer": alarm["optimizer"], "text": alarm["action"]}
        self._add_event("lower-rate", of, lr_factor=lr_factor)

    def growth_began(self, alarm: Alarm | None = None) -> int | None:
        """The first step of a growth that was warned of, or that has led to this alarm."""
        steps = [one["since"] for one in self.warnings if one["what"] == "growth"]
        if alarm is not None and (onset := alarm.get("onset")):
            steps.append(onset["step"])
        return min(steps, default=None)

    def last_good_checkpoint(self, alarm: Alarm | None = None) -> dict[str, Any] | None:
        """The newest that was written before anything grew."""
        return self._checkpoints.last_good(self.growth_began(alarm)) if self._checkpoints else None

    def _add_event(self, kind, of, **more):
        """A line of events.jsonl, where this process has a report of its own. of: its "text", "step" (None before the
        first and after the last one) and "optimizer"; more: further keys of that kind."""
        if not self.is_kept or self._is_ended:
            return
        now, redact = datetime.datetime.now(datetime.timezone.utc), self.config.redact
        event = {
            "schema": 1,
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "step": of["step"],
            "rank": ranks.world()[0],
            "optimizer": of.get("optimizer") or "",
            "kind": kind,
            "text": "" if redact else of.get("text", ""),
            **(capsule_alarm.redacted(more) if redact else more),
        }
        line = json.dumps(_native.plain(event, secrets.shown), allow_nan=False).encode() + b"\n"
        if why := self._event_file.append(line, self.run_directory):
            self.complain(f"cannot write events.jsonl: {why}")
        if self._listeners is not None:
            self._listeners.deliver(line)

    def _end_events(self):
        self._is_ended = True
        self._event_file.close()
        if self._listeners is not None:
            self._listeners.close()

    def advise(
        self, kind: str, step: int | None, text: str, cause: Cause | None = None, births: Iterable[Birth] = ()
    ) -> None:
        """Lists an advisory; of a kind only so many."""
        if sum(a["kind"] == kind for a in self.advisories) < MOST_OF_A_KIND:
            self.advisories.append({"kind": kind, "step": step, "text": text, "births": list(births), "cause": cause})
            self._add_event("advisory", {"step": step, "text": text}, what=kind)

    def add_not_watched(self, what: str) -> None:
        """Lists it once."""
        if what not in self.not_watched:
            self.not_watched.append(what)

    def document(self) -> Document:
        """This process's; with what the processes it started left, where it was started by `finitude run`."""
        own = self._own_document()
        is_alone = self.place or family.VARIABLE not in os.environ
        return own if is_alone else _native.plain(merge.merged(own, merge.members(self.planned_directory())))

    def _open_drops(self):
        """Steps that the script has dropped since the last one that was applied; at the end they are counted."""
        return sum(drop[4] for drop in _native.open_drops()) if self.unapplied is None else 0

    def _own_document(self):
        c = _native.counters()
        off = _native.switched_off()
        if off is not None and not self.failure:
            self.failure = f"internal failure of the gate: {off[0]}"
        under_way = self._under_way()
        listed = self.alarms[: merge.MAX_ALARMS - len(under_way)]
        alarms = listed + under_way
        unlisted = self.alarms_left_out + len(self.alarms) - len(listed)
        facts = {
            "finitude": _native.version,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "command": self.command,
            "script": self.script or "",
            "by_watch": self.by_watch,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds(), 3),
            "counters": {
                **c,
                "steps": c["steps"] + self.steps_by_hand,
                "handled_by_script": c["handled_by_script"] + self._open_drops(),
            },
            "not_watched": self.not_watched,
            "first_alarm": alarms[0].get("text", "") if alarms else None,
            "failure": self.failure,
            "unapplied": self.unapplied or 0,
            "zero_gradients": self.zero_steps,
            "done": self.done,
            "ranks": ranks.world()[1] if ranks.several() else 1,
        }
        document = {
            **json.loads(_native.report_head(json.dumps(_native.plain(facts), allow_nan=False))),
            "alarms": alarms + (merge.elsewhere(self.elsewhere, alarms) if self.elsewhere else []),
            "advisories": self.advisories,
            "warnings": self.warnings,
            "failures": self.failures,
            "unwatched_from": off and off[1],
        }
        if unlisted:
            document["alarms_unlisted"] = unlisted
            document["advisories"] = self.advisories + [json.loads(_native.unlisted_advisory(unlisted))]
        if self._checkpoints:
            document["checkpoints"] = self._checkpoints.document(self.growth_began())
        if self.trace_ops is not None:
            document["trace"] = {"ops": self.trace_ops}
        return _native.plain(capsule_alarm.redacted(document) if self.config.redact else document, secrets.shown)

    def _under_way(self):
        """The alarm that is being explained, as it is if the explanation fails."""
        if self.unexplained is None:
            return []
        return [
            {
                "action": "stopped",
                "rerun_text": "the program was ended while the step was being explained",
                **{k: v for k, v in self.unexplained.items() if k not in INNER and v != ""},
            }
        ]

    def text(self, document: Document | None = None) -> str:
        text = json.dumps(document or self.document(), allow_nan=False)
        return _native.render_terminal(text, say.has_colour(), max(40, say.width()), say.has_unicode())

    def planned_directory(self) -> str:
        """The directory of this run, made or not."""
        if self._planned is None or os.getpid() != self.pid:
            self._planned = family.run_path(self.config, self.script, self.started)
        return self._planned

    def _me(self) -> Process:
        """This process, for readers of a report that is not the last."""
        if self._process is None or os.getpid() != self.pid:
            self._process = alive.me()
        return self._process

    def run_directory(self) -> str | None:
        """Makes the directory of this run; None where that is not possible (read-only, full)."""
        if self.directory is None:
            path = self.planned_directory()
            try:
                if self.place:
                    path = self.place()
                os.makedirs(path, exist_ok=True)
            except OSError as e:
                self.complain(
                    f"cannot make {path}: {e.strerror}. Use --runs DIR to write elsewhere.",
                    OF_DISK.get(e.errno or 0, ""),
                )
                self.directory = ""
                return None
            self.directory = path
            self._say_who_runs(path)
        return self.directory or None

    def _say_who_runs(self, path):
        """run.json: how the process of this run was started, and who it is, for readers that find no report yet."""
        self._started = run_facts.of_start(
            self.config, self.script or "", self.command, self.started, self._me(), self.is_kept
        )
        self._put_started(path)
        if self.is_kept:
            text = "" if self.config.redact else " ".join(self.command)
            self._add_event("start", {"step": None, "text": text}, process=self._me())

    def _put_started(self, path):
        self._put_at(os.path.join(path, "run.json"), pages.as_json(_native.plain(self._started)).encode())

    def note_hyper_parameters(self, optimizer: Any) -> None:
        """Its first step comes: they are in run.json from then on."""
        if not self.is_kept or not self.directory or len(self._started["optimizers"]) >= run_facts.MOST_GROUPS:
            return
        self._started["optimizers"].append(run_facts.hyper_parameters(optimizer, bool(self.config.redact)))
        self._started.update(run_facts.at_first_step(bool(self.config.redact)))
        self._put_started(self.directory)

    def path(self) -> str:
        """Of the JSON report, as it is going to be; "": whoever merges the processes of the run writes it."""
        paths = [self.config.report] if self.config.report else []
        if not self.place and self.directory != "":
            paths.append(os.path.join(self.planned_directory(), "report.json"))
        may_be = (path for path in paths if path not in self.not_written and not os.path.isdir(path))
        return next(map(_short, may_be), "")

    def ring_in(self, directory: str | None) -> str:
        """The path of the ring of steps; "": there is none."""
        if directory and not is_plain(directory):
            self.not_watched.append(f"the ring of steps and capsules: {directory} is not UTF-8")
            return ""
        return os.path.join(directory, "steps.ring") if directory else ""

    def is_clean(self) -> bool:
        """Is there nothing but what a healthy run leaves? What was not watched is no part of that."""
        return not (self.alarms or self.failure or self.failures or self.not_written)

    def worth_writing(self) -> bool:
        """Did this process train at all?"""
        document = self._own_document()
        seen = ("steps", "backward_calls", "scaler_skips")
        return bool(self.failure or document["alarms"] or any(document["watched"][key] for key in seen))

    def complain(self, text: str, about: str = "") -> None:
        """Once, and once of what it is about: a disk that is full is full for each file."""
        if (about or text) not in self.complained:
            self.complained.add(about or text)
            say.say(f"finitude: warning: {text}\n")

    def save(self, is_shown: bool = True) -> None:
        """The report so far, whole, in place of the one before. is_shown: a person hears of it at this moment."""
        count = len(self.alarms) + self.alarms_left_out
        now = time.monotonic()
        if not self.is_kept or os.getpid() != self.pid:
            return
        if not is_shown and count > FEW and now - self.saved_at < max(QUIET_SECONDS, 20 * self.save_took):
            return
        try:
            document = {**self.document(), "under_way": self._me()}
            document.pop("trace", None)  # of all operators: at the end
            self._put(json.dumps(document, allow_nan=False).encode(), is_last=False)
        except Exception as e:  # the end of the run writes it as well
            self.complain(f"the report could not be written before the end: {type(e).__name__}: {e}")
        self.saved_at = time.monotonic()
        self.save_took = self.saved_at - now

    def _put(self, content: bytes, is_last: bool) -> list[str]:
        """The paths written. A device or a pipe is written once, at the end."""
        directory = self.run_directory()
        paths = [os.path.join(directory, "report.json")] if directory else []
        paths += [self.config.report] if self.config.report else []
        plain = [path for path in paths if is_last or not os.path.lexists(path) or os.path.isfile(path)]
        return [path for path in plain if self._put_at(path, content)]

    def _put_at(self, path, content):
        try:
            os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
            _native.write_whole(path, content)
            self.not_written.discard(path)
            return True
        except OSError as e:
            self.not_written.add(path)
            self.complain(f"cannot write {path}: {e.strerror or e}", OF_DISK.get(e.errno or 0, ""))
            return False

    def write(self) -> list[str]:
        """Writes report.json and report.html of the run and --report, and what they say into the capsules; returns the
        paths written."""
        document = self.document()
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        if self.directory and self.is_kept:
            end = {"step": None, "text": document["reason"] or document["outcome"]}
            self._add_event("end", end, outcome=document["outcome"])
            self._end_events()
        written = self._put(text.encode(), is_last=True)
        for alarm in self.alarms:
            if alarm.get("capsule"):
                capsule_alarm.complete(alarm, self.config.redact)
        if self.directory:
            page = os.path.join(self.directory, "report.html")
            try:
                written += [page] if self._put_at(page, _native.render_html(text)) else []
            except (MemoryError, ValueError) as e:
                self.complain(f"the HTML report could not be made: {e}")
        return written

    def closing_line(self, written: list[str]) -> str:
        place = next((p for p in written if p.endswith(".json")), "")
        page = next((p for p in written if self.directory and p == os.path.join(self.directory, "report.html")), "")
        return merge.closing_line(self.document(), _short(place) if place else "", _short(page) if page else "")


def _short(path):
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory was removed
        return path
    return relative if len(relative) < len(path) and not relative.startswith(os.pardir) else path
