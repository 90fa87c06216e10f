"""Capsules: the second run of a bad step is put on a tape, and the tape with what it reads into a folder beside the
report."""

from __future__ import annotations

import datetime
import getpass
import json
import os
import platform
import time

import torch

from .. import _native
from ..base import compat, git, plain_json, secrets, sources, working_folder
from ..base.kinds import is_a
from ..base.own_child import OwnChild
from ..base.plain_json import is_plain, safe
from ..base.say import say
from ..program import optimizer_members, ranks, step_start_state, torch_flags
from ..report.capsule_alarm import forget_removed, without_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..base.types import Alarm, Config, Generators, Optimizer, Sink
    from ..report.document import Report

MOST_OF_FIRST = 1 << 30  # bytes of the tape of a first step
REPLAY_BELOW = 16 << 20  # bytes of inputs: a replay to check the capsule takes no longer than a step of such a size
HURRIED_SECONDS = 5  # that a program which was asked to end waits for what is being written
CONTINUES = ("skip", "warn", "rollback")  # policies under which the program continues after an alarm
GROUP_KEYS = "name", "description", "backend", "ranks"  # of a process group, in capsule.json
PLAYER = os.path.join(os.path.dirname(_native.__file__), "finitude-replay")
FINE = (
    "identical",
    "not tried",
    "nothing to compare",
    "operators of other libraries",
)  # how a replay comes out that nobody need hear of


def name_modules() -> None:
    """Gives the open tape what else modules hold, and parameters that none holds, after all that optimizers own, as
    the first name stays: weights that nobody trains (a frozen backbone, a teacher) have rows, and none of them is a
    sample."""
    for held, name, tensor in optimizer_members.held_by_modules():
        _native.tape_name(tensor, "buffer" if held == "_buffers" else "frozen", name)
    for name, p in optimizer_members.loose_parameters():
        _native.tape_name(p, "frozen", name)


def describe(optimizer: Optimizer, parameters: bool = False) -> None:
    """Gives the open tape what memory of this optimizer it reads, and what the step came to there."""
    for name, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
        _native.tape_name(p, "parameter", name)
        if p.grad is not None:
            grad = p.grad._values() if p.grad.is_sparse else p.grad  # as an operator wrote them
            _native.tape_outcome("gradient", name, grad)
            _native.tape_name(grad, "gradient", name)
        if parameters:
            _native.tape_outcome("parameter", name, p.detach())
        state = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in (state or {}).items():
            if is_a(value, torch.Tensor):
                _native.tape_name(value, "state", f"{name}.{key}")
    for name, buffer in optimizer_members.buffers(optimizer):
        _native.tape_name(buffer, "buffer", name)
        _native.tape_outcome("buffer", name, buffer)


def drop() -> None:
    """Nothing is written of what was recorded."""
    step_start_state.forget()
    _native.tape_clear()


def _has_start(folder):
    try:
        return "start" in plain_json.read(os.path.join(folder, "capsule.json"), 64 << 20)
    except (OSError, ValueError):
        return True  # it is gone again, or another process has it: nothing is known


def _say_left_behind(settled):
    """What became of capsules that other runs were killed over."""
    for folder, kept_as in settled:
        say(
            f"finitude: {kept_as}: a whole capsule of a run that was killed has its name now\n"
            if kept_as
            else f"finitude: removed {folder}: a part of a capsule, of a run that was killed\n"
        )


class Capsules:
    """Records the steps that run again, and writes their capsules."""

    def __init__(
        self,
        config: Config,
        report: Report,
        step_start: step_start_state.Remembering,
        print_alarm: Callable[[Alarm], None],
    ):
        """print_alarm: prints what a person is to read of an alarm."""
        self._config, self._report, self._step_start, self._print_alarm = config, report, step_start, print_alarm
        self._being_written: dict[str, Alarm] = {}  # in the background, by folder
        self._with_start = set()  # of these folders: those that are to hold what `replay --with` puts in place

    def wanted(self) -> bool:
        return self._config.capsules > 0 and self._config.capsule_max > 0

    def limit(self) -> int:
        return self._config.capsule_max << 20

    def begin(self, generators: Generators | None = None, is_first: bool = False) -> None:
        """The step that runs from here on is recorded. generators: as it begins with them, where they are others than
        now. is_first: none has been taken, and what lies between may read much."""
        if self.wanted():
            step_start_state.here(generators, is_past=is_first)
            _native.tape_start(min(MOST_OF_FIRST, self.limit()) if is_first else self.limit())

    def stop(
        self,
        optimizer: Optimizer | None,
        parameters: bool = False,
        sinks: Iterable[Sink] | None = (),
        raised: bool = False,
    ) -> None:
        """The step is over: says what a replay has to come to, and what the memory is that it reads. raised: it never
        came to backward."""
        if not _native.tape_on():
            return
        _native.tape_stop()
        self._step_start.remember(optimizer)
        own = set(optimizer_members.names(optimizer)) if optimizer is not None else ()
        for kind, name, tensor in sinks or ():
            if name in own and (kind == "gradient" or parameters and kind == "parameter"):
                continue  # reported with the others below
            if (
                raised or kind not in ("loss", "gradient")
            ) and tensor is not None:  # a loss is reported as backward begins
                _native.tape_outcome(kind, name, optimizer_members.unwrapped(tensor.detach()))
        if optimizer is not None:
            describe(optimizer, parameters)
        name_modules()

    def folder_for(self, alarm: Alarm) -> str | None:
        """Where the capsule of that alarm goes; None where it cannot be written."""
        directory = self._report.run_directory()
        if directory is None or not is_plain(directory):
            return None
        name = f"step-{alarm['step']:06d}"
        if ordinal := alarm.get("optimizer_ordinal"):
            name += f"-optimizer-{ordinal}"
        path = os.path.join(directory, name)
        for again in range(2, 100):
            if not os.path.exists(path) and path not in self._being_written:
                break
            path = os.path.join(directory, f"{name}-{again}")
        return path

    def write(self, alarm: Alarm, folder: str | None = None, in_background: bool = False) -> str | None:
        """Writes what was recorded. The path, or None, with the reason in the report's list of what was not watched.
        in_background: where its policy lets the program continue, it continues meanwhile; the alarm says that the
        capsule is pending until `settle` or `finish` know the outcome."""
        self.settle()
        folder = folder or self.folder_for(alarm)
        start = step_start_state.forget()
        if folder is None:
            _native.tape_clear()
            return None
        about = _about(alarm, self._report, self._config.redact)
        held = []
        if start is not None and not self._config.redact:
            about["start"] = start.document
            held = start.tensors.files
            if any(start.samples):
                about["samples"] = start.samples
        text = json.dumps(about, allow_nan=False)
        what = folder, text, self.limit(), bool(self._config.redact), REPLAY_BELOW, _source_of, held
        runs = os.path.dirname(self._report.planned_directory()) if self._report.is_kept else ""
        if in_background and self._config.on_alarm in CONTINUES:
            try:
                why = _native.capsule_write_beside(
                    *what, PLAYER if os.access(PLAYER, os.X_OK) else "", runs, self._config.capsules
                )
            except (KeyboardInterrupt, SystemExit) as e:
                # While those before this one fill the memory that there is for them: the alarm is printed all the same.
                self._report_missing(alarm, f"{type(e).__name__} while it waited for those before")
                alarm["action"] = "stopped"
                alarm.pop("optimizer_ordinal", None)
                self._report.add_alarm(alarm)
                self._print_alarm(alarm)
                raise
            if not why:
                if held:
                    self._with_start.add(folder)
                self._being_written[folder] = alarm
                alarm["capsule_pending"] = True
                return folder
            self._report_missing(alarm, why)
            return None
        why, replayed = _native.capsule_write(*what)
        self._report_missing(alarm, why, replayed, folder if held else None)
        if why:
            return None
        _native.capsules_keep_newest(os.path.dirname(folder), self._config.capsules, folder)
        _say_left_behind(_native.capsules_settle_left_behind(runs))
        return folder

    def write_healthy(self, step: int, optimizer: str) -> str | None:
        """The capsule of a step that is no alarm, at once, with its values. The path, or None, with the reason in
        the report."""
        of_step: Any = {"step": step, "optimizer": optimizer, "rank": ranks.world()[0]}
        folder = self.folder_for(of_step)
        start = step_start_state.forget()
        if folder is None:
            return None
        about = _about(of_step, self._report, redact=False)
        del about["alarm"]
        about["healthy"] = True
        held = []
        if start is not None:
            about["start"] = start.document
            held = start.tensors.files
        text = json.dumps(about, allow_nan=False)
        why, replayed = _native.capsule_write(folder, text, self.limit(), False, REPLAY_BELOW, _source_of, held)
        self._report_missing(of_step, why, replayed)
        return None if why else folder

    def settle(self) -> None:
        """What has come of the capsules that were written in the background."""
        for done in _native.capsules_done() if self._being_written else ():
            _say_left_behind(done["left_behind"])
            alarm = self._being_written.pop(done["folder"], None)
            if alarm is None:
                continue
            del alarm["capsule_pending"]
            why = f"its folder {done['why_not']}" if done["why_not"] else ""
            self._report_missing(
                alarm, why, done["replayed"], done["folder"] if done["folder"] in self._with_start else None
            )
            self._with_start.discard(done["folder"])
            if why:  # it was said that it was being written
                alarm["capsule"] = None
                say(f"finitude: step {alarm['step']} leaves no capsule: {why}\n")

    def finish(self, hurried: bool = False) -> None:
        """The program ends: waits for the capsules that are being written. hurried: somebody ended it, and waits for
        that."""
        if self._being_written:
            self._await(hurried)
        if removed := forget_removed(self._report.alarms + self._report.advisories):
            say(f"finitude: {removed}\n")

    def _await(self, hurried):
        began, is_said = time.monotonic(), False
        try:
            while not _native.capsules_wait(0.05):
                waited = time.monotonic() - began
                if hurried and waited > HURRIED_SECONDS:
                    break
                if waited > 2 and not is_said:  # a small one takes less, with its replay
                    is_said = True
                    steps = ", ".join(str(alarm["step"]) for alarm in self._being_written.values())
                    say(
                        f"finitude: finishing the capsule of step {steps}"
                        + (f", for at most {HURRIED_SECONDS} s\n" if hurried else " (Ctrl-C skips it)\n")
                    )
        except KeyboardInterrupt:
            pass
        if not _native.capsules_wait(0):
            _native.capsules_give_up()
            _native.capsules_wait(1.0)
        self.settle()
        for alarm in self._being_written.values():  # of a disk that does not answer
            del alarm["capsule_pending"]
            alarm["capsule"] = None
            self._report_missing(alarm, "it was not written when the program ended")
        self._being_written.clear()

    def arrived(self, alarm: Alarm, folder: str | None) -> str | None:
        """The folder that a second process has written, if it can be seen from here."""
        if folder is None or os.path.isfile(os.path.join(folder, "capsule.json")):
            return folder
        self._report.add_not_watched(
            f"a capsule of step {alarm['step']}: the second process could not write to {os.path.dirname(folder)}"
        )
        return None

    def _report_missing(self, alarm, why, replayed="", folder=None):
        """What of the step no capsule holds. folder: of one that is to hold what `replay --with` puts in place."""
        limit_text = f"(--capsule-max {self._config.capsule_max})"
        if why:
            self._report.add_not_watched(
                f"a capsule of step {alarm['step']}: {why}" + (f" {limit_text}" if why.endswith(" MB") else "")
            )
            return
        if folder is not None and not _has_start(folder):
            self._report.add_not_watched(
                f"in the capsule of step {alarm['step']} what `replay --with` needs: it would grow too "
                f"large by it {limit_text}"
            )
        if not replayed.startswith(FINE):
            self._report.add_not_watched(
                f"a replay of step {alarm['step']} with the same bits: its capsule differs ({replayed})"
            )


def _platform():
    with OwnChild():  # Python may ask the command `uname`
        return platform.platform()


def _about(alarm, report, redact):
    about = {
        "kind": "finitude capsule",
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "finitude": _native.version,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": _platform(),
        "machine": platform.machine(),
        "step": alarm["step"],
        "micro_batch": alarm.get("micro_batch", 0),
        "rank": alarm.get("rank", 0),
        "ranks": ranks.world()[1],
        "groups": [dict(zip(GROUP_KEYS, one)) for one in compat.process_groups()],
        "optimizer": alarm.get("optimizer", ""),
        "alarm": alarm,
        "flags": torch_flags.flags(),
    }
    if redact:
        about["alarm"] = without_sources(alarm)
    else:
        about["command"] = report.command
        about["seeds"] = torch_flags.seeds()
        about["user"], about["host"] = _user(), platform.node()
        about["script"] = report.script or ""
        script = about["script"]
        folder = os.path.dirname(working_folder.absolute(script)) if script else working_folder.current()
        about["git"] = git.head(folder)
        about["environment"] = json.loads(_native.kept_environment())
    return safe(secrets.hidden(about))


def _source_of(file, line):
    return secrets.masked_source(sources.line(file, line))[:400]


def _user():
    """Who ran it; None where the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
