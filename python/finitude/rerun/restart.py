"""Restart: the same program from its start in a second process, armed at the bad step."""

from __future__ import annotations

import json
import math
import os
import shutil
import time

import torch

from .. import _native
from ..base import compat
from ..base.plain_json import safe
from ..program import ranks
from ..report import incident
from . import launch_command, overlay_fs, process, restart_ranks
from .target import ENVIRONMENT
from .way import BadStep, Outcome, Refused, Way, note_rerun, serves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..base.types import Alarm, Findings, Fingerprint, Order, Parts, Where
    from ..program.optimizer_threads import Makers
    from .launch_command import Start

LONGEST_SEARCH = (
    300  # seconds up to the step that a search has found: it is not run a third time where that takes longer
)


def attempt(step: BadStep) -> Outcome | Refused:
    """The way for every bad step, and the last one."""
    began_with = step.sinks if step.where == "start" else ()
    raised = step.sinks if step.is_dropped and step.where == "window" else ()
    return step.session.restart.attempt(
        step.alarm,
        step.expected or incident.fingerprint(step.optimizer, began_with, raised),
        step.where,
    )


WAY = Way("restart", attempt)


class Restart:
    """Starts the program of this process again in a second process."""

    def __init__(self, session: Parts):
        self._session = session

    def is_possible(self) -> bool:
        """Could the program be started again from here? Not where it was not `finitude run`, nor alone as one of
        several ranks."""
        return self._session.start is not None and self._session.start.command is not None and not ranks.several()

    def seconds(self) -> float:
        """Since the program was started; infinity where it is not known."""
        start = self._session.start
        return math.inf if start is None else time.monotonic() - start.monotonic

    def run(
        self,
        alarm: Alarm,
        expected: Fingerprint,
        where: Where = "window",
        hand: int | None = None,
        then: Any = None,
    ) -> str:
        """Starts the same program again in a second process, armed at the alarm's step, and takes over what it found.

        where the bad value is. "earlier", "overflowed": the alarm's step becomes the one where it was made. hand: of a
        program without an optimizer, the engine call whose loss is bad. then: of a step after which the program has
        continued: what had been decided of others (Session.decided), what names held, how long it had taken.

        Returns where the second process found the bad value: "written" by a step, in the "window" before one, at the
        "end" of the program; "" where it did not come to it."""
        outcome = self.attempt(alarm, expected, where, hand, then)
        return outcome.found_in if serves(outcome, alarm) and isinstance(outcome, Outcome) else ""

    def attempt(
        self,
        alarm: Alarm,
        expected: Fingerprint,
        where: Where,
        hand: int | None = None,
        then: Any = None,
    ) -> Outcome | Refused:
        """The same, without the reason in the alarm where it does not serve."""
        if alarm["cause"]["class"] == "other-rank":
            return Refused()  # what this rank holds is finite
        session = self._session
        start = session.start
        if is_one_more := then is None and session.second_runs.left.in_place_only():
            session.second_runs.left.end_in_place()
        if ranks.several():
            if session.member and start is not None and not (alarm["harmless"] and session.damage):
                noted: Alarm = {**alarm}
                incident.note_failed_way(noted, restart_ranks.TOGETHER)
                left = self._leave_order(
                    noted,
                    {
                        **_order(start, alarm, expected, where, hand, session.makers),
                        "ranks": ranks.world()[1],
                        "decided": session.skipped.decided,
                    },
                )
                if left and session.config.on_alarm == "stop" and not ranks.on_several_machines():
                    session.console.explain_later(alarm)
            return Refused(restart_ranks.TOGETHER)
        if start is None or start.command is None:
            why = (
                "the program cannot be started again from here; run it under `finitude run`"
                + ', or with finitude.watch(level="trace")' * (where != "start" and session.config.level != "trace")
                if start is None
                else "this process lives on what its parent gave it and cannot be started again; "
                "with --level trace every step is recorded"
            )
            return Refused(why)
        if is_one_more:
            if where == "window":
                session.rest.note(alarm, expected)
            return Refused("a second process is started for the first of its kind")
        more, resumed, remark = [], "", ""
        if session.config.restart_args:
            try:
                more, resumed = process.more_arguments(session.config.restart_args, start.cwd)
            except process.NoCheckpoint as e:
                remark = f"{e}, so it was run from its start"
        # From a checkpoint on it is not known before which step is to be recorded.
        recorded = session.capsules.wanted() and not resumed
        order = {
            **_order(start, alarm, expected, where, hand, session.makers),
            "resumed": resumed,
            "decided": session.skipped.decided,
            "guard": bool(session.config.guard_memory),
        }
        if then is not None:
            order["decided"], order["named"], order["took"] = then
        if where == "skipped":
            order["skips"] = session.scaling.skipped[alarm["optimizer_ordinal"]]
        found, why, files, folder = self._ask(alarm, order, more, recorded)
        if found is None:
            shutil.rmtree(
                folder or "", ignore_errors=True
            )  # a capsule that the second process had written of what is not the step
            return Refused(why)
        incident.apply(alarm, found["findings"])
        alarm["step"], alarm["capsule"] = found["step"], session.capsules.arrived(alarm, found["capsule"] and folder)
        if found["no_capsule"]:
            session.report.add_not_watched(found["no_capsule"])
        elif recorded and where == "earlier":
            self._record(alarm, order, found, files)
        said = "; ".join(t for t in (found["text"], remark, files) if t)
        before = f" ({alarm['rerun_text']})" if alarm["rerun_text"] else ""
        note_rerun(alarm, WAY.name, found["rerun"], found["verified"], said + before)
        return Outcome(found_in=found["found_in"] or "end")

    def asked_of_memory(self, alarm: Alarm, suspects: list[str]) -> Findings | None:
        """A second process goes as far as the first step of the alarm's optimizer, with all fresh memory filled. What
        it says of memory that nobody had written by then, as first_values.py has it; None where it did not get there.
        suspects: names of what the first run makes suspicious."""
        session = self._session
        first: Alarm = {**alarm, "step": 0}
        order = {
            **_order(session.start, first, {}, "memory", None, session.makers),
            "memory": {"step": alarm["step"], "suspects": suspects},
        }
        found, *_ = self._ask(first, {**order, "resumed": "", "decided": session.skipped.decided}, [], False)
        return found and found["findings"]

    def _ask(self, alarm, order, more, recorded):
        """Sends a second process. (what it found or None, why it did not, what has to be said of its files, where its
        capsule is)."""
        session = self._session
        start = session.start
        folder = session.capsules.folder_for(alarm) if recorded else None
        directory = overlay_fs.scratch_outside(*overlay_fs.directories_of(start.cwd, start.command[1:]))
        try:
            path = os.path.join(directory, "order.json")
            result = os.path.join(directory, "result.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(
                    {**order, "result": result, "alarm": safe(alarm), "capsule": folder and os.path.abspath(folder)}, f
                )
            environment = {**os.environ, **ranks.alone(), **restart_ranks.fresh_memory([order]), ENVIRONMENT: path}
            if start.hash_seed is not None:
                environment["PYTHONHASHSEED"] = start.hash_seed
            code, why, files = process.run(
                start,
                [*start.command, *more],
                environment,
                directory,
                alarm,
                order["resumed"],
                [os.path.abspath(session.config.runs)],
                session.report.directory,
                order.get("took"),
            )
            try:
                with open(result, encoding="utf-8") as f:
                    return json.load(f), "", files, folder
            except (OSError, ValueError):
                ended = "" if code is None else f" (exit code {code})"  # None: the program has waited for it
                why = why or f"the second process ended{ended} before step {order['step']}"
                return None, why + (f": {launch_command.ONCE}" if start.input_is_lost() else ""), files, folder
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _record(self, alarm, order, found, files):
        """Now that it is known which step it was, the program is run up to it once more, recorded, for its capsule and
        the experiments on the whole step. `found` takes over what came of it."""
        session = self._session
        what = f"a capsule of step {found['step']}: "
        if found["found_in"] is None:
            session.report.add_not_watched(f"{what}the bad value came up after the last step")
        elif found["seconds"] > LONGEST_SEARCH:
            session.report.add_not_watched(
                f"{what}the program would have to run up to it once more, which takes {found['seconds'] / 60:.0f} min"
            )
        else:
            order = {
                **order,
                "first": found["step"],
                "step": found["step"],
                "written": found["found_in"] == "written",
                "damaged": True,
            }
            recorded, why, more_files, folder = self._ask(alarm, order, [], True)
            births = [
                [(b["op"], b["file"], b["line"]) for b in one["findings"]["births"][:1]]
                for one in (found, recorded)
                if one
            ]
            if recorded is None or births[0] != births[1]:
                shutil.rmtree(folder or "", ignore_errors=True)
                session.report.add_not_watched(
                    what + (why or "the program did something else as it ran up to it once more")
                )
                return
            incident.apply(alarm, recorded["findings"])
            alarm["capsule"] = session.capsules.arrived(alarm, recorded["capsule"] and folder)
            found["text"] += ", and again as it was recorded" + (f"; {more_files}" if more_files and not files else "")
            if recorded["no_capsule"]:
                session.report.add_not_watched(recorded["no_capsule"])

    def _leave_order(self, alarm, order):
        """For whoever started all ranks: they can only be run again together, which needs this run to be over. True if
        it is left: there is one order for a rank, and that of a step that was applied gives way to none but one of
        another sort."""
        session = self._session
        directory = session.report.run_directory()
        if directory is None or alarm["harmless"] and os.path.exists(os.path.join(directory, restart_ranks.ORDER)):
            return False
        order["listed"] = len(session.report.alarms)
        if session.capsules.wanted() and "advisory" not in alarm and (folder := session.capsules.folder_for(alarm)):
            order = {**order, "alarm": safe(alarm), "capsule": os.path.abspath(folder), "capsule_in_report": folder}
        with open(os.path.join(directory, restart_ranks.ORDER), "w", encoding="utf-8") as f:
            json.dump(order, f)
        return True


def _order(start: Start, alarm: Alarm, expected: Fingerprint, where: Where, hand: int | None, makers: Makers) -> Order:
    """What a second process needs to know to come to the same step and to check that it is the same."""
    rest: Fingerprint = {**expected}
    return {
        "start": rest.pop("start", None),
        "ordinal": alarm["optimizer_ordinal"],
        "step": alarm["step"],
        "hand": hand,
        "written": where == "written",
        "swallowed": where == "swallowed",
        "overflowed": where == "overflowed",
        "dropped": where == "dropped",
        "first": max(0, alarm["step"] - _native.ROTATION - 1) if where in ("earlier", "overflowed") else alarm["step"],
        "expected": rest,
        "named": incident.in_names() if where == "window" else [],
        "seeds": start.seeds,
        "threads": torch.get_num_threads(),
        "compiled": compat.compiled_code_ran(),
        "made": makers.identity(alarm["optimizer_ordinal"]),
    }
