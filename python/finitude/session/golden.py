"""--golden: each dump of this run against that of another run, until one differs. The program finitude-offline compares
while the training continues."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess

from ..base import dump_plan, family, golden_dumps, programs
from ..base.dump_plan import Plan, Steps
from ..base.own_child import OwnChild, OwnProcess
from ..base.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..report.document import Report

KIND = "golden-differs"
AT_END = 60.0  # seconds that are waited for comparisons when the run ends
MOST_TEXT = 1 << 20
SAME, DIFFER = 0, 1  # exit codes of `finitude diff`
PART, FIRST = "finitude:", "first"  # how lines of its answer begin


class Golden:
    def __init__(self, path: str, report: Report):
        """path: "" for none."""
        self._report, self._path = report, path
        self._files: dict[int, str] = {}  # by step
        self._running: list[tuple[int, str, OwnProcess, OwnChild]] = []  # step, command, its process
        self._agreed: list[int] = []
        self.has_ended = False

    def plan(self, given: Plan, rank: int) -> Plan:
        """What this rank dumps so that it can be compared: the same steps, of the kind asked for, or else of the same
        kind. Called once the first optimizer is made: then the ranks are known."""
        if not self._path:
            return given
        self._files = golden_dumps.find(self._path, rank)
        if not self._files:
            return Plan()
        steps = Steps(tuple((step, step) for step in sorted(self._files)), ())
        if not given.kind:
            kind = golden_dumps.kind_of(next(iter(self._files.values())))
            given = dataclasses.replace(dump_plan.parse(kind, "0", ""), only=given.only)
        return dataclasses.replace(given, steps=steps)

    def compare(self, step: int, file: str) -> None:
        """`file` is written."""
        other = self._files.get(step)
        if other is None or self.has_ended:
            return
        environment = dict(os.environ)
        family.withdraw(environment)  # it is no part of the run
        child = OwnChild()
        try:
            process = OwnProcess(
                ["finitude", "diff", "--no-colour", "--", other, file],
                executable=programs.path_of(programs.OFFLINE),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as e:
            child.ended()
            self._cannot_compare(step, e.strerror or str(e))
            return
        child.started(process.pid)
        self._running.append((step, shlex.join(["finitude", "diff", other, file]), process, child))
        self.look()

    def look(self, seconds: float = 0.0) -> None:
        """Takes the answers that are there, in the order of the steps; seconds: waits for each so long."""
        while self._running and not self.has_ended:
            step, command, process, child = self._running[0]
            try:
                # What it prints fits into the pipe, or it waits until the end of this call.
                out, _ = process.communicate(timeout=seconds or 0.001)
            except subprocess.TimeoutExpired:
                return
            self._running.pop(0)
            child.ended()
            lines = out[:MOST_TEXT].decode("utf-8", "replace").splitlines()
            if process.is_taken:
                self._cannot_compare(step, "the program has waited for the process that does it")
            elif process.returncode == SAME:
                self._agreed.append(step)
            elif process.returncode == DIFFER:
                self._differs(step, lines, command)
            else:
                self._cannot_compare(step, (lines or [""])[-1].removeprefix(PART).strip())

    def close(self) -> None:
        """The run ends."""
        self.look(AT_END)
        for _, _, process, child in self._running:
            process.kill()
            process.communicate()
            child.ended()
        self._running.clear()
        if self._files and not self.has_ended:
            missing = sorted(set(self._files) - set(self._agreed))
            of = f"; not compared: {', '.join(map(str, missing[:8]))}{' ...' * (len(missing) > 8)}" if missing else ""
            say(f"finitude: {len(self._agreed)} of {len(self._files)} steps agree with --golden {self._path}{of}\n")

    def _differs(self, step, lines, command):
        """Says what `diff` found first."""
        verdict = next((line.removeprefix(PART).strip() for line in lines if line.startswith(PART)), "they differ")
        begin = next((i for i, line in enumerate(lines) if line.startswith(FIRST + " ")), len(lines))
        end = next((i for i in range(begin + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
        details = [line.removeprefix(FIRST).strip() for line in lines[begin:end]]
        what = f"step {step} differs from --golden {self._path}: {verdict}"
        details.append(f"`{command}` shows all")
        self.has_ended = True
        say(f"finitude: {what}\n" + "".join(f"  {line}\n" for line in details))
        self._report.advise(KIND, step, f"{what}; {'; '.join(details)}")

    def _cannot_compare(self, step, why):
        """It is not known whether that step differs: no later one is compared either."""
        self.has_ended = True
        self._report.complain(f"step {step} cannot be compared with --golden {self._path}: {why}")
