"""What the server answers, as functions of plain values: each gives a text of at most 16 KB or raises Refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

from ..base import checked_json, plain_json
from ..capsules import pack
from . import changed_copy, offline, text
from .jobs import Jobs
from .roots import MOST_RUNS, Roots, is_below, runs_of, summary
from .text import EXIT_CANNOT, EXIT_INPUT, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SECONDS = 600  # for one answer
_CALL = re.compile(r"[A-Za-z0-9_:.]{1,100}(#\d{1,6})?")
_SKIPPED = ("not reached", "lost")  # verdicts that the program's own last words explain


class Tools:
    def __init__(self, roots: Roots, jobs: Jobs, seconds: float = SECONDS, links: Sequence[str] = ()):
        self.roots, self.jobs, self.seconds, self.links = roots, jobs, seconds, links

    def list_runs(self, directory: str = "") -> str:
        places = [self.roots.path(directory)] if directory else self.roots.directories
        found = [run for place in places for run in runs_of(place)]
        summaries = [summary(run, self._shown(run)) for run in reversed(found[-MOST_RUNS:])]
        answer = {"runs": summaries, "more": max(0, len(found) - MOST_RUNS)}
        answer["directories"] = [self._shown(p) for p in places]
        while len(_json(answer).encode()) > text.MOST and summaries:
            summaries.pop()
            answer["more"] = len(found) - len(summaries)
        return _json(answer)

    def explain(self, path: str = "") -> str:
        real = self.roots.path(path) if path else self.roots.newest()
        return offline.for_agent(real, self._shown(real))

    def replay(self, capsule: str) -> str:
        real = self.roots.capsule(capsule)
        code, out, err = self._finitude("replay", real)
        if code not in (0, 1):
            raise _refused(code, err)
        return text.within(f"{'reproduced' if code == 0 else 'not reproduced'}\n{out}{err}")

    def inspect_tensor(self, capsule: str, which: str = "") -> str:
        real = self.roots.capsule(capsule)
        if not which:
            code, out, err = self._finitude("replay", real, "--step-through")
            if code not in (0, 1):
                raise _refused(code, err)
            return text.within(f"calls: inspect_tensor(which=NUMBER or NAME#N); {self._names(real)}\n{out}")
        if which in self._start_names(real):
            with pack.unpacked(real) as folder, self.jobs.scratch() as scratch:
                for name in ("tensors.safetensors", "start.safetensors"):
                    code, out, err = self._stats(os.path.join(folder, name), which, scratch)
                    if code == 0:
                        return text.within(out)
                raise Refused(text.line(err.strip().splitlines()[-1] if err.strip() else "it is not there"))
        if not _CALL.fullmatch(which):
            raise Refused("which is a number of a call, log or log#2, or a name such as parameter.0.weight")
        with self.jobs.scratch() as scratch:
            saved = os.path.join(scratch, "call.safetensors")
            code, out, err = self._finitude("replay", real, "--stop-at", which, "--save-tensors", saved)
            if code != 0 or not os.path.exists(saved):
                raise _refused(code, err or out)
            code, numbers, err = self._stats(saved, "", scratch)
            if code != 0:
                raise _refused(code, err)
            stats = json.loads(numbers)
            rows = [f"{name}: {json.dumps(stats[name])}" for name in stats]
            return text.within("\n".join([out.rstrip(), *rows]) + "\n")

    def diff(self, a: str, b: str) -> str:
        code, out, err = self._finitude("diff", self.roots.path(a), self.roots.path(b))
        if code not in (0, 1):
            raise _refused(code, err)
        return text.within(f"{'they do not part' if code == 0 else 'they part'}\n{out}{err}")

    def try_patch(
        self,
        capsule: str,
        file: str,
        old: str = "",
        new: str = "",
        diff: str = "",
        command: str = "",
        directory: str = "",
    ) -> str:
        real = self.roots.capsule(capsule)
        if bool(old or new) == bool(diff):
            raise Refused("give either old and new, or diff")
        if max(len(old), len(new), len(diff)) > changed_copy.MOST_SOURCE:
            raise Refused(f"a change of more than {changed_copy.MOST_SOURCE} characters")
        try:
            with pack.unpacked(real) as folder, self.jobs.scratch() as scratch:
                return self._tried(folder, file, (old, new, diff), command, directory, scratch)
        except pack.Refused as e:
            raise Refused(text.line(e)) from None
        except OSError as e:
            raise Refused(f"{text.line(e.filename or '', 200)}: {e.strerror}", EXIT_CANNOT) from None

    # -- parts ---------------------------------------------------------------------------------

    def _tried(self, folder, file, change, command, directory, scratch):
        home, words = self._program(_about(folder), command, directory)
        changed = self.roots.path(os.path.join(home, file) if not os.path.isabs(file) else file)
        if not is_below(changed, home) or not os.path.isfile(changed):
            raise Refused(f"{text.line(file, 200)} is no file of the program's folder {text.line(home, 200)}")
        before = changed_copy.read(changed)
        old, new, diff = change
        after = changed_copy.patched(before, diff) if diff else changed_copy.replaced(before, old, new)
        relative = os.path.relpath(changed, home)
        try:
            compile(after, relative, "exec", dont_inherit=True) if relative.endswith(".py") else None
        except (SyntaxError, ValueError) as e:
            raise Refused(f"the changed file does not compile: {text.line(e, 300)}") from None
        skipped = []
        for name in ("before", "after"):
            os.mkdir(os.path.join(scratch, name))
            skipped = changed_copy.copy(home, os.path.join(scratch, name), self.links)
        target = os.path.join(scratch, "after", relative)
        if not os.path.exists(target):
            raise Refused(f"{text.line(relative, 200)} is not copied: it lies in a folder that holds no program")
        with open(target, "w", encoding="utf-8", newline="") as f:
            f.write(after)
        line = shlex.join(words)
        code, out, err = self._finitude(
            "replay", folder, "--json", "--timeout", str(max(1, int(self.seconds))),
            "--with", line, "--in", os.path.join(scratch, "after"),
            "--against", line, "--against-in", os.path.join(scratch, "before"), "--instead-of", changed,
        )  # fmt: skip
        try:
            result = json.loads(out)
        except ValueError:
            raise _refused(code, err) from None
        return _verdict(result, relative, before, after, skipped, err, scratch)

    def _program(self, about, command, directory):
        """(the folder to start it in, the words that start it)."""
        script = about.get("script")
        if not isinstance(script, str) or not os.path.isabs(script):
            raise Refused("the capsule does not say which program it is of; give command and directory")
        every = about.get("command")
        recorded = [w for w in every if isinstance(w, str)] if isinstance(every, list) else []
        home, words = _started(script, recorded)
        if command:
            try:
                words = shlex.split(command)
            except ValueError as e:
                raise Refused(f"command: {text.line(e)}") from None
            words = words[1:] if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])) else words
            words = words[2:] if words[:2] == ["finitude", "run"] else words
        if not words:
            raise Refused("the capsule does not hold the program's command; give command")
        if any("***" in w for w in words):
            raise Refused("a secret was masked in the recorded command; give command")
        home = self.roots.path(directory or home)
        if not os.path.isdir(home):
            raise Refused(f"{text.line(home, 200)} is no directory")
        # In the copy: by its path in the folder.
        return home, [
            os.path.relpath(w, home) if os.path.isabs(w) and is_below(os.path.realpath(w), home) else w for w in words
        ]

    def _finitude(self, *words):
        return self.jobs.finitude(words, self.seconds, self.roots.directories[0])

    def _stats(self, file, name, scratch):
        words = [sys.executable, "-m", "finitude.agents.tensor_stats", file, *filter(None, [name])]
        return self.jobs.run(words, self.seconds, scratch)

    def _start_names(self, capsule):
        try:
            with pack.unpacked(capsule) as folder:
                start = _about(folder).get("start")
        except pack.Refused as e:
            raise Refused(text.line(e)) from None
        tensors = start.get("tensors") if isinstance(start, dict) else None
        return [n for n in tensors if not n.startswith("generators.")] if isinstance(tensors, dict) else []

    def _names(self, capsule):
        names = self._start_names(capsule)
        shown = ", ".join(text.line(n, 80) for n in names[:40])
        return f"or tensors that the step began with: {shown}{' ...' if len(names) > 40 else ''}"

    def _shown(self, path):
        """A path that the tools take again."""
        first = self.roots.directories[0]
        return os.path.relpath(path, first) if is_below(path, first) else path


def _json(value):
    return json.dumps(value, indent=1) + "\n"


def _refused(code, said):
    lines = [one for one in said.strip().splitlines() if one.strip()]
    own = [one for one in lines if one.startswith("finitude: ")]
    shown = (own or lines or [f"exit code {code}"])[-1]
    return Refused(text.line(shown.removeprefix("finitude: ")), code if code > EXIT_INPUT else EXIT_INPUT)


def _about(folder):
    try:
        about = plain_json.read(os.path.join(folder, pack.ABOUT), pack.MOST_ABOUT, checked_json.is_damaged)
    except OSError as e:
        raise Refused(f"{pack.ABOUT} cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise Refused(f"is no sound capsule: {pack.ABOUT}: {text.line(e, 200)}") from None
    if not isinstance(about, dict) or about.get("kind") != "finitude capsule":
        raise Refused(f"is no capsule: {pack.ABOUT} is not that of one")
    return about


def _started(script, command):
    """(folder, words) in which and by which a program was started, as its command and the path of its script say."""
    at = next((i for i, w in enumerate(command) if w == "run"), -1) + 1
    for i in range(at, len(command)):
        word = command[i]
        if word == "-m" and i + 1 < len(command):
            name = command[i + 1]
            for tail in (name.replace(".", os.sep) + ".py", os.path.join(name.replace(".", os.sep), "__main__.py")):
                if script.endswith(os.sep + tail):
                    return script[: -len(tail) - 1] or os.sep, command[i:]
        plain = os.path.normpath(word)
        if os.path.isabs(plain) and plain == script:
            return os.path.dirname(script), [script, *command[i + 1 :]]
        if not os.path.isabs(plain) and script.endswith(os.sep + plain) and not word.startswith("-"):
            return script[: -len(plain) - 1] or os.sep, [plain, *command[i + 1 :]]
    return os.path.dirname(script), [script]


def _place(birth):
    if not isinstance(birth, dict):
        return None
    return {
        "op": text.line(birth.get("op") or birth.get("phase"), 100),
        "at": f"{text.line(os.path.basename(str(birth.get('file') or '')), 100)}:{text.line(birth.get('line'), 12)}",
        "source": text.source(birth.get("source")),
    }


def _verdict(result: dict[str, Any], file, before, after, skipped, err, scratch):
    """The outcome of a trial, bounded."""
    import difflib

    is_fix = result.get("fix") is True and result.get("verdict") == "fixed"
    answer: dict[str, Any] = {"fix": is_fix, "verdict": text.line(result.get("verdict"), 40)}
    if is_fix:
        answer["text"] = "the step is finite, and every value that the birth did not touch has the bits that it had"
    elif result.get("objection"):
        answer["verdict"] = "finite, but no fix"
        answer["text"] = text.line(result["objection"])
    else:
        answer["text"] = text.line(result.get("text") or "the step is not finite")
    if result.get("verdict") in _SKIPPED or result.get("verdict") == "refused":
        last = [one for one in err.strip().splitlines() if one.strip()][-3:]
        answer["the program's last words"] = [text.line(one.replace(scratch, ""), 300) for one in last]
    for key in ("loss", "grad_absmax"):
        if result.get(key) is not None:
            answer[key] = text.line(result[key], 40)
    if result.get("birth"):
        answer["born now"] = _place(result["birth"])
        answer["the same birth"] = result.get("same_birth") is True
    if isinstance(result.get("cause"), dict):
        answer["cause now"] = text.line(result["cause"].get("text"))
    if isinstance(result.get("values"), dict):
        values = result["values"]
        kept = {k: values.get(k) for k in ("kept", "changed", "hidden", "rounding", "largest", "not_compared")}
        names = {k: [text.line(n, 60) for n in values.get(k) or ()][:8] for k in ("missing", "added")}
        answer["values"] = {**kept, **names, "first": values.get("first")}
    answer["notes"] = [text.line(n, 300).replace(scratch, "") for n in result.get("notes") or ()][:8]
    if skipped:
        answer["not copied, for their size"] = [text.line(s, 120) for s in skipped[:8]]
    shown = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{file}", f"b/{file}", lineterm="")
    answer["change"] = text.lines("\n".join(shown), 60)
    return text.within(_json(plain_json.safe(answer)))
