"""The report document: assembled here, checked and rendered by the engine."""

import datetime
import json
import os
import sys

import torch

from .. import _native
from ..base import family
from ..base.plain_json import is_plain, safe
from ..program import ranks
from . import merge

INNER = ("optimizer_ordinal", "advisory")   # of an alarm under way; no part of a report


class Report:
    def __init__(self, config, script, command):
        self.config = config
        self.started = datetime.datetime.now(datetime.timezone.utc)
        self.script, self.command = script, command
        self.alarms, self.advisories, self.not_watched = [], [], []
        self.alarms_left_out = 0
        self.unexplained = None       # the alarm that a second run is to explain
        self.steps_by_hand = 0        # of a program without an optimizer
        self.unapplied = 0            # windows at the end, in a row, that no step applied
        self.trace_ops = None
        self.directory = None
        self.place = None             # makes the directory, where this process is one of several of a run
        self.failure = ""

    def seconds(self):
        """Since the run began."""
        return (datetime.datetime.now(datetime.timezone.utc) - self.started).total_seconds()

    def add_alarm(self, alarm):
        """Lists it; past the number that a report may hold, only counts it."""
        self.unexplained = None
        if self.config.redact and alarm.get("capsule"):
            alarm["capsule_redacted"] = True
        if len(self.alarms) < merge.MAX_ALARMS:
            self.alarms.append(alarm)
        else:
            self.alarms_left_out += 1

    def document(self):
        """This process's; with what the processes it started left, where it was started by `finitude run`."""
        own = self._own_document()
        return own if self.place else safe(merge.merged(own, merge.members(self.planned_directory())))

    def _own_document(self):
        c = _native.counters()
        c["steps"] += self.steps_by_hand
        outcome, reason = "clean", ""
        alarms = self.alarms + self._under_way()
        if alarms:
            outcome = "alarm"
            reason = alarms[0].get("text", "")
        elif self.failure:
            outcome, reason = "unwatched", self.failure
        elif c["steps"] == 0 and c["scaler_skips"] == 0:
            outcome = "unwatched"
            if c["backward_calls"]:
                reason = "backward was called, but no optimizer of torch.optim stepped"
            elif c["optimizers"]:
                reason = "an optimizer was made, but backward was never called and it never stepped"
            else:
                reason = "nothing that trains was seen: no optimizer and no backward"
        document = {
            "schema": 1, "outcome": outcome, "reason": reason, "finitude": _native.version, "torch": torch.__version__,
            "python": sys.version.split()[0], "command": list(self.command), "script": self.script or "",
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds(), 3),
            "watched": {
                "optimizers": c["optimizers"], "steps": c["steps"], "backward_calls": c["backward_calls"],
                "gradients_scanned": c["gradients_scanned"], "scaler_skips": c["scaler_skips"],
                "handled_by_script": c["handled_by_script"], "not_watched": self.not_watched,
            },
            "alarms": alarms, "advisories": self.advisories,
        }
        if self.unapplied >= max(1, self.config.max_skips):
            document["watched"]["unapplied"] = self.unapplied
        if ranks.several():
            document["watched"]["ranks"] = ranks.world()[1]
        if self.alarms_left_out:
            document["advisories"] = self.advisories + [{
                "kind": "alarms-left-out", "step": None, "births": [], "cause": None,
                "text": f"{self.alarms_left_out} alarms more than a report holds are not listed"}]
        if self.trace_ops is not None:
            document["trace"] = {"ops": self.trace_ops}
        return safe(document)

    def _under_way(self):
        """The alarm that is being explained, as it stands should nothing come of that."""
        if self.unexplained is None:
            return []
        return [{"action": "stopped", "rerun_text": "the program was ended while the step was being explained",
                 **{k: v for k, v in self.unexplained.items() if k not in INNER and v != ""}}]

    def text(self, document=None, stream=None):
        stream = stream or sys.stderr
        colour = stream.isatty() and not os.environ.get("NO_COLOR")
        try:
            width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 80
        except (OSError, ValueError):
            width = 80
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        text = json.dumps(document or self.document(), allow_nan=False)
        return _native.render_terminal(text, colour, max(40, width), encoding.startswith("utf"))

    def planned_directory(self):
        """The directory of this run, made or not."""
        return family.run_path(self.config, self.script, self.started)

    def run_directory(self):
        """Makes the directory of this run; None where that is not possible (read-only, full)."""
        if self.directory is None:
            path = self.planned_directory()
            try:
                if self.place:
                    path = self.place()
                os.makedirs(path, exist_ok=True)
            except OSError as e:
                self.complain(f"cannot make {path}: {e.strerror}. Use --runs DIR to write elsewhere.")
                self.directory = ""
                return None
            self.directory = path
        return self.directory or None

    def path(self):
        """Of the JSON report, as it is going to be; "": whoever merges the processes of the run writes it."""
        if self.config.report:
            return _short(self.config.report)
        return "" if self.place or self.directory == "" else _short(os.path.join(self.planned_directory(), "report.json"))

    def ring_in(self, directory):
        """The path of the ring of steps; "": there is none."""
        if directory and not is_plain(directory):
            self.not_watched.append(f"the ring of steps and capsules: {directory} is not UTF-8")
            return ""
        return os.path.join(directory, "steps.ring") if directory else ""

    def worth_writing(self):
        """Did this process train at all?"""
        return bool(self.failure) or merge.trained(self._own_document())

    def complain(self, text):
        sys.stderr.write(f"finitude: warning: {text}\n")

    def write(self):
        """Writes report.json and report.html of the run and --report, and what they say into the capsules; returns the paths written."""
        from . import capsule_alarm

        document = self.document()
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        for alarm in self.alarms:
            if alarm.get("capsule"):
                capsule_alarm.complete(alarm, self.config.redact)
        written = []
        directory = self.run_directory()
        targets = [(os.path.join(directory, "report.json"), text.encode())] if directory else []
        if directory:
            try:
                targets.append((os.path.join(directory, "report.html"), _native.render_html(text)))
            except ValueError as e:
                self.complain(f"the HTML report could not be made: {e}")
        if self.config.report:
            targets.append((self.config.report, text.encode()))
        for path, content in targets:
            temporary = f"{path}.{os.getpid()}.tmp"
            try:
                parent = os.path.dirname(os.path.abspath(path))
                os.makedirs(parent, exist_ok=True)
                with open(temporary, "wb") as f:
                    f.write(content)
                os.replace(temporary, path)
                written.append(path)
            except OSError as e:
                self.complain(f"cannot write {path}: {e.strerror}")
                try:
                    os.unlink(temporary)
                except OSError:
                    pass
        return written

    def write_early(self):
        """The report so far, for whoever merges the processes of a run, should this one be killed before its end."""
        count = len(self.alarms) + self.alarms_left_out
        directory = self.run_directory()
        if directory is None or count > 8 and count & (count - 1):
            return
        try:
            with open(os.path.join(directory, "report.json.tmp"), "w", encoding="utf-8") as f:
                json.dump(self.document(), f, indent=1, allow_nan=False)
            os.replace(os.path.join(directory, "report.json.tmp"), os.path.join(directory, "report.json"))
        except OSError as e:
            self.complain(f"cannot write {directory}: {e.strerror}")

    def closing_line(self, written):
        place = next((p for p in written if p.endswith(".json")), "")
        return merge.closing_line(self.document(), self.alarms_left_out, _short(place) if place else "")


def _short(path):
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) and not relative.startswith(os.pardir) else path
