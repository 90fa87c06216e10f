"""The word `doctor` of the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import sys

from ..base import screen
from ..base.option_words import Wrong
from ..launch import targets
from ..report import merge, run_folder
from . import after, first_steps, log_files, rank_findings, registry, source
from .checks import determinism
from .facts import Steps
from .options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .registry import Check, Finding

OK, BAD, USAGE, UNREADABLE, CANNOT = 0, 1, 2, 3, 4


def _load_rules(paths):
    for i, path in enumerate(paths):
        if not os.path.isfile(path):
            raise source.Unreadable(f"cannot read {path}: No such file or directory")
        spec = importlib.util.spec_from_file_location(f"finitude_rules_{i}", path)
        if spec is None:
            raise Wrong(f"--rules takes a Python file, not {path}")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
        except Exception as e:
            raise source.Unreadable(f"cannot load {path}: {type(e).__name__}: {e}") from None


def _script_of(options):
    """The file that runs: of a module without importing it."""
    if not options.module:
        path = options.target
        return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
    path = os.path.join(os.getcwd(), *options.target.split("."))
    for found in (path + ".py", os.path.join(path, "__main__.py")):
        if os.path.isfile(found):
            return found
    raise source.Unreadable(f"no file of the module {options.target} below {os.getcwd()}")


class Examination:
    """Runs checks and keeps what they find."""

    def __init__(self):
        self.findings, self.looked_at, self.not_looked_at, self.trouble = [], [], [], []
        self.logs = []
        self.random = None  # of --random: its calls
        self.ranks = []  # whose first steps were examined; none: no launcher started this process

    def look(self, kind: str, subject: Any) -> None:
        if kind not in self.looked_at:
            self.looked_at.append(kind)
        for check in registry.all_checks():
            if check.looks_at != kind:
                continue
            try:
                found = list(check.function(subject) or ())
            except Exception as e:  # one check that fails leaves the others their say
                self.trouble.append(f"{check.id} {check.name} failed: {type(e).__name__}: {e}")
                continue
            for finding in found:
                self._enter(check, kind, finding)

    def _enter(self, check: Check, kind: str, finding: Finding) -> None:
        # What the source shows and the first steps confirm is one finding: the one that was seen to happen.
        for i, (other, seen_in, f) in enumerate(self.findings):
            if (
                other.id == check.id
                and seen_in != kind
                and finding.file
                and (f.file, f.line) == (finding.file, finding.line)
            ):
                if registry.VERDICTS.index(finding.verdict) <= registry.VERDICTS.index(f.verdict):
                    self.findings[i] = (check, kind, finding)
                return
        self.findings.append((check, kind, finding))

    def add_ranks(self, documents: dict[int, dict[str, Any]], own: int) -> None:
        """What ranks found, this one among them: those that only some have say which."""
        found, self.ranks = rank_findings.merged(documents)
        checks = {(c.id, c.looks_at): c for c in registry.all_checks()}
        self.findings = []
        for one in found:
            check = checks.get((one["check"], one["seen_in"]))
            if check is None or one["verdict"] not in registry.VERDICTS:
                continue
            text, evidence = str(one["text"]), dict(one.get("evidence") or {})
            if one["ranks"] != self.ranks:
                text += f" (rank {', '.join(map(str, one['ranks']))})"
                evidence["ranks"] = one["ranks"]
            finding = registry.Finding(
                one["verdict"], text, str(one["advice"]), str(one["file"]), int(one["line"]), evidence
            )
            self.findings.append((check, one["seen_in"], finding))
        for rank, document in documents.items():
            if rank != own:
                self.not_looked_at += [
                    {"what": f"{one['what']} of rank {rank}", "why": one["why"]} for one in document["not_looked_at"]
                ]
                self.trouble += [f"rank {rank}: {text}" for text in document["trouble"]]

    def sorted(self):
        order = {c.id: i for i, c in enumerate(registry.all_checks())}
        return sorted(self.findings, key=lambda f: (registry.VERDICTS.index(f[2].verdict), order[f[0].id]))

    def is_bad(self) -> bool:
        return any(f.verdict == "bad" for _, _, f in self.findings)


def _document(options, examination):
    return {
        "schema": 1,
        "target": options.target,
        "looked_at": examination.looked_at,
        "not_looked_at": examination.not_looked_at,
        **({"logs": examination.logs} if examination.logs else {}),
        **({"ranks": examination.ranks} if examination.ranks else {}),
        "checks": len({c.id for c in registry.all_checks()}),
        "trouble": examination.trouble,
        **({"random": examination.random} if examination.random is not None else {}),
        "findings": [
            {
                "check": c.id,
                "name": c.name,
                "seen_in": kind,
                "verdict": f.verdict,
                "text": f.text,
                "advice": f.advice,
                "file": f.file,
                "line": f.line,
                "evidence": f.evidence,
            }
            for c, kind, f in examination.sorted()
        ],
    }


def _clean(text):
    """What others wrote, for a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def _wrapped(text, indent, width):
    import textwrap

    return textwrap.fill(
        _clean(text), width, initial_indent=" " * indent, subsequent_indent=" " * indent, break_long_words=False
    )


def _cut(line, width):
    """The line; on a terminal no more of it than fits. A file gets it whole."""
    return line if not screen.is_terminal() or len(line) <= width else line[: width - 3] + "..."


def _table(examination, width):
    lines = []
    for check, kind, f in examination.sorted():
        place = f"   {os.path.relpath(f.file)}:{f.line}" if f.file else ""
        lines.append(_cut(_clean(f"{f.verdict:<5} {check.id:<4} {check.name}{place}   [{kind}]"), width))
        lines.append(_wrapped(f.text, 6, width))
        if f.advice:
            lines.append(_wrapped("-> " + f.advice, 6, width))
    counts = {v: sum(1 for _, _, f in examination.findings if f.verdict == v) for v in registry.VERDICTS}
    checks = len({c.id for c in registry.all_checks() if c.looks_at in examination.looked_at})
    counted = ", ".join(f"{n} {v}" for v, n in counts.items() if n) or "nothing found"
    short = "".join(f"; not seen: {one['what']}" for one in examination.not_looked_at if one["what"] != "source")
    of_ranks = f" on {len(examination.ranks)} ranks" if examination.ranks else ""
    summary = f"{checks} checks of {' and '.join(examination.looked_at)}{of_ranks}: {counted}{short}"
    lines.append(_wrapped(summary, 0, width) if screen.is_terminal() else summary)
    if examination.random is not None:
        lines += [_cut(_clean(line), width) for line in _draws(examination.random)]
    return "\n".join(lines) + "\n"


def _draws(calls):
    """The table of --random, in the order of the first call."""
    if not calls:
        return ["random numbers: nothing draws any"]
    lines = ["random numbers, in the order of their first call (step 0 with all before it):"]
    for one in calls:
        steps = ", ".join(f"{n} in step {step}" for step, n in list(one["by_step"].items())[:4])
        more = f" and {len(one['by_step']) - 4} more steps" if len(one["by_step"]) > 4 else ""
        file, line = one["at"]
        place = f"   {os.path.relpath(file)}:{line}" if file else ""
        where = " in backward" if one["backward"] else ""
        lines.append(f"  {one['op']}{where}   {one['generator']}   {steps}{more}{place}")
    return lines


def _examine_script(options, examination):
    """Exit code where the first steps could not be seen, else None."""
    path = _script_of(options)
    examination.look("source", read := source.read(path))
    examination.not_looked_at += [{"what": "source", "why": why} for why in read.left_out]
    if options.static:
        return None
    try:
        seen, words = [], ""
        for _ in range(options.repeat):
            facts, words = first_steps.run(
                options.target,
                options.module,
                options.arguments,
                options.steps,
                options.seconds,
                options.show_output,
                options.repeat > 1,
                options.random,
            )
            seen.append(facts)
    except first_steps.CannotRun as e:
        examination.not_looked_at.append({"what": "steps", "why": str(e)})
        return CANNOT
    others = [Steps(seen[0], Steps(other), len(seen)) for other in seen[1:]]
    steps = next((s for s in others if not determinism.is_repeated(s)), others[-1] if others else Steps(seen[0]))
    examination.random = steps.get("random")
    examination.look("steps", steps)
    examination.trouble += steps.trouble
    if steps.ended == "steps" or steps.steps and steps.ended == "finished":
        return None
    why = {
        "raised": f"the script raised {steps.error}",
        "finished": "the script ended",
        "time": f"{options.seconds:g} s were over (--seconds)",
    }.get(steps.ended, "the process of the script was ended")
    so_far = f"{len(steps.steps)} optimizer steps" if steps.steps else "any optimizer step"
    examination.not_looked_at.append({"what": "steps", "why": f"{why} {'after' if steps.steps else 'before'} {so_far}"})
    if steps.ended == "raised" and not options.show_output:
        sys.stderr.write("".join(_clean(line) + "\n" for line in words.splitlines()[-12:]))
    return CANNOT


def _standing(run):
    """Of a run that did not end by itself."""
    count = merge.count_alarms(run.document)
    has = f"holds {count} alarm{'s' * (count != 1)} so far" if run.document else "is not there yet"
    if run_folder.state(run.directory or ".", run.document or None) == "running":
        return f"{has}: the run is in progress"
    return f"{has}: the run was killed (out of memory and a full disk look like that), or is running elsewhere"


def _examine_left(options, examination):
    """What a run left; a capsule is computed again as well."""
    with after.unpacked(options.target) as target:
        for run in after.read(target):
            if run.is_capsule and not options.static:
                run.replays, why = after.replayed(run.directory or ".", run.capsules[0])
                if why:
                    examination.not_looked_at.append({"what": "replay", "why": why})
            examination.look("run", run)
            if run.killed:
                examination.not_looked_at.append({"what": "report", "why": f"{run.directory or '.'} {_standing(run)}"})
            elif run.document.get("outcome") == "unwatched":
                why = f"{run.directory or '.'} was not watched: {run.document.get('reason')}"
                examination.not_looked_at.append({"what": "steps", "why": why})


def _logs_of(path):
    """The logs of other tools at a path; none where it is something else."""
    if os.path.isdir(path):
        return [] if after.holds_a_run(path) else log_files.below(path)
    return [path] if log_files.kind_of(path) else []


def _examine_logs(paths, examination):
    """Several in a directory: one that cannot be read does not hide the others."""
    failed = []
    for path in paths:
        try:
            log = log_files.read(path)
        except log_files.Unreadable as e:
            failed.append(str(e))
            continue
        examination.look("log", log)
        examination.logs.append(log_files.about(log))
        if log.trouble:
            examination.not_looked_at.append({"what": "log", "why": f"{path}: {log.trouble}"})
    if len(failed) == len(paths):
        raise after.Unreadable(failed[0])
    examination.not_looked_at += [{"what": "log", "why": why} for why in failed]


def main(words: Sequence[str], newest: Callable[[bool], str | None] = lambda quiet: None) -> int:
    """Returns the exit code. newest: gives the newest run where no target is named, and says which it is unless it is
    to be quiet; None: there is none, which it has said."""
    try:
        options = parse(words)
        _load_rules(options.rules)
        if options.checks:
            sys.stdout.write(
                "".join(f"{c.id:<4} {c.name:<22} {c.looks_at:<7} {c.text}\n" for c in registry.all_checks())
            )
            return OK
        if options.ranks:
            from . import rank_health

            return rank_health.main(options)
        if options.target is None:
            options.target = newest(options.quiet)
            if options.target is None:
                return UNREADABLE
        if os.path.basename(options.target) in targets.LAUNCHERS or options.target in targets.LAUNCHER_MODULES:
            raise Wrong(
                f"{os.path.basename(options.target)} is a launcher; let it start the doctor: "
                "torchrun --nproc-per-node 2 -m finitude doctor train.py"
            )
        examination, lacking, ranks = Examination(), None, None
        if not options.module and not os.path.exists(options.target):
            raise source.Unreadable(f"cannot read {options.target}: No such file or directory")
        logs = [] if options.module else _logs_of(options.target)
        if logs:
            _examine_logs(logs, examination)
        elif not options.module and after.is_left_by_a_run(options.target):
            _examine_left(options, examination)
        else:
            lacking = _examine_script(options, examination)
            ranks = rank_findings.meeting()
            others = ranks.bring(_document(options, examination), options.seconds) if ranks else {}
            if others is None:  # another rank prints
                return BAD if examination.is_bad() else lacking or OK
            if ranks:
                examination.add_ranks(others, ranks.rank)
    except Wrong as e:
        sys.stderr.write(f"finitude doctor: {e}\n(finitude doctor --help shows the options)\n")
        return USAGE
    except (source.Unreadable, after.Unreadable) as e:
        sys.stderr.write(f"finitude doctor: {_clean(e)}\n")
        return UNREADABLE
    except ImportError as e:
        sys.stderr.write(f"finitude doctor: the engine that reads runs cannot be loaded here: {_clean(e)}\n")
        return CANNOT
    if options.json:
        from ..base.plain_json import safe

        sys.stdout.write(json.dumps(safe(_document(options, examination)), indent=1, allow_nan=False) + "\n")
    elif not options.quiet:
        sys.stdout.write(_table(examination, screen.columns(otherwise=100)))
    for one in examination.not_looked_at:
        sys.stderr.write(f"finitude doctor: not seen: {one['what']}: {_clean(one['why'])}\n")
    for one in examination.trouble:
        sys.stderr.write(f"finitude doctor: {_clean(one)}\n")
    if ranks:
        sys.stdout.flush()
        ranks.end()
    return BAD if examination.is_bad() else lacking or OK
