"""`finitude replay CAPSULE --with "python train.py ..."`: the captured step in the user's own code, as it is now.
Fixed, or not?"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from ..base import checked_json, family
from ..base.plain_json import Damaged, read, safe
from ..base.say import printable
from ..capsules import pack
from ..capsules.start_check import is_sound
from ..launch import targets
from . import untouched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_THREADS = 1024  # also of what a capsule says of itself, which comes from anywhere
CONFIRM_SECONDS = 60  # at least, for the steps before the one of the capsule
EXIT_FIXED, EXIT_NOT_FIXED, EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 0, 1, 2, 3, 4
USAGE = """usage: finitude replay [CAPSULE] --with "COMMAND" [--against "COMMAND"]
                       [--json] [--quiet] [--threads N] [--timeout SECONDS]
Starts COMMAND (`train.py --lr 0.1`, `python train.py`, `-m package`,
`EPS=1e-3 python train.py`), puts weights, buffers, optimizer state, generators
and the batch of the capsule in place at its first step, runs that step under
trace, and ends it there. Without CAPSULE: the newest one in finitude-runs.
  --against COMMAND   the unchanged program: its step is run first, and the
                      change is a fix only if every value that the birth did not
                      touch has the bits that it has there (docs/agents.md)
  --json              the outcome as JSON
  -q, --quiet         only the exit code, failures, and --json where given
  --threads N         threads of torch; as many as recorded by default
  --timeout SECONDS   for the whole of it (3600)
Exit codes: 0 the step is fixed, 1 it is not, or with --against the change is no
fix, 2 usage, 3 the capsule is unreadable, 4 it does not fit the program, or was
not reached.
"""


# --in, --against-in: the folders in which the two are started; --instead-of: the file that a changed copy replaces.
_TEXTS = ("--with", "--against", "--in", "--against-in", "--instead-of")


class _Usage(Exception):
    pass


def _parse(rest):
    options: dict[str, Any] = {"json": False, "quiet": False, "threads": 0, "timeout": 3600}
    options.update({name[2:]: "" for name in _TEXTS})
    paths, words = [], list(rest)
    while words:
        word = words.pop(0)
        name, eq, value = word.partition("=")
        if word == "--json":
            options["json"] = True
        elif word in ("-q", "--quiet"):
            options["quiet"] = True
        elif name in (*_TEXTS, "--threads", "--timeout"):
            if not eq:
                if not words:
                    raise _Usage(f"{name} needs a value")
                value = words.pop(0)
            most = MOST_THREADS if name == "--threads" else 1 << 20
            if name not in _TEXTS and (not value.isdecimal() or not 0 < int(value) <= most):
                raise _Usage(f"{name} takes a number, not {value!r}")
            options[name[2:]] = value if name in _TEXTS else int(value)
        elif word.startswith("-"):
            raise _Usage(f"{word} is no option beside --with")
        else:
            paths.append(word)
    if len(paths) != 1:
        raise _Usage("one capsule")
    options["environment"], options["with"] = _command("--with", options["with"])
    if not options["with"]:
        raise _Usage("--with needs the command that starts the program")
    if options["against"]:
        options["unchanged"] = _command("--against", options["against"])
    return paths[0], options


def _command(name, value):
    """(variables, words) of a command as in a shell: EPS=1e-3 python train.py."""
    try:
        words = shlex.split(value)
    except ValueError as e:
        raise _Usage(f"{name}: {e}") from None
    environment = {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        variable, _, text = words.pop(0).partition("=")
        environment[variable] = text
    return environment, words


def _about(folder):
    """capsule.json, or (None, why not). Its files are read, and checked, where they are used."""
    try:
        about = read(os.path.join(folder, pack.ABOUT), pack.MOST_ABOUT, checked_json.is_damaged)
        sound = about.get("start") is None or is_sound(about["start"])
        if about["kind"] == "finitude capsule" and type(about["schema"]) is int and about["schema"] != 1:
            return None, f"is a capsule of schema {about['schema']}; this program reads 1"
        if about["kind"] != "finitude capsule" or about["schema"] != 1 or type(about["step"]) is not int or not sound:
            raise ValueError
        return about, ""
    except OSError as e:
        return None, f"is no capsule: {pack.ABOUT}: {e.strerror}"
    except Damaged as e:
        return None, f"is no sound capsule: {pack.ABOUT}: {e}"
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None, f"is no capsule: {pack.ABOUT} is not that of one"


def _why_not(about):
    """Why nothing of it can be put into a program, or ""."""
    if about.get("redacted"):
        return "was made with --redact: it holds no values"
    start = about.get("start")
    if start is None:
        return (
            "does not hold what the program held when the step began: it was made by an older "
            "version, for a program without an "
            "optimizer, or would have grown beyond --capsule-max"
        )
    if type(about.get("ranks", 1)) is int and about.get("ranks", 1) > 1:
        return "is one of several ranks; a rank alone cannot be run in its program"
    return ""


def _ways(about):
    """How to put it in place, in the order in which that is tried."""
    step = about["step"]
    return (["batch"] if about["start"]["batches"] else ["first"] if step > 0 else []) + (
        ["step"] if step > 1 or step == 1 and about["start"]["batches"] else ["start"] if step == 0 else []
    )


def _try_ways(folder, about, options, scratch):
    """The first that puts the step in place. A step that comes out finite in place of another one may owe that to the
    program's own count of its steps (`if step == 412:`): then the program is let run up to the step itself as well,
    where that does not take long."""
    ways = _ways(about)
    for way in ways:
        began = time.monotonic()
        result = {**_run(folder, about, way, options, scratch), "way": way}
        if result["verdict"] not in ("other batch", "not reached"):
            break
    if result["verdict"] != "fixed" or way == "step" or ways[-1] != "step" or (way == "first" and about["step"] == 1):
        return result
    took = time.monotonic() - began
    limit = int(min(options["timeout"], max(CONFIRM_SECONDS, 10 * took)))
    itself = {**_run(folder, about, "step", {**options, "timeout": limit}, scratch), "way": "step"}
    if itself["verdict"] == "not fixed":
        note = (
            "in place of an earlier step it comes out finite: what happens depends on the "
            f"program's count of its steps, {about['step']}"
        )
        return {**itself, "notes": [*itself.get("notes", ()), note]}
    there = f"as step {about['step']} of the program itself"
    note = f"and so it is {there}" if itself["verdict"] == "fixed" else f"not confirmed {there}: {itself['text']}"
    return {**result, "notes": [*result.get("notes", ()), note]}


def _values(way, options, scratch):
    """What the process is to do about the values of its operations; nothing without --against."""
    if not options["against"]:
        return {}
    mine = os.path.join(scratch, f"{way}.values")
    if "baseline" not in options:
        return {"values": mine}
    before = os.path.join(options["baseline"], f"{way}.values")
    return {
        "values": mine,
        "against": before if os.path.exists(before + ".calls") else None,
        "birth": options["birth"],
        "instead_of": list(filter(None, options["instead-of"].split(os.pathsep))),
    }


def _run(folder, about, way, options, scratch):
    """One start of the program. The result, or its substitute."""
    result = os.path.join(scratch, f"{way}.json")
    order = os.path.join(scratch, f"{way}.order.json")
    sink = _part(_part(about, "alarm"), "sink")
    recorded = _part(about, "flags").get("threads")
    threads = options["threads"] or (recorded if type(recorded) is int and 0 < recorded <= MOST_THREADS else None)
    with open(order, "w", encoding="utf-8") as f:
        json.dump(
            {
                "capsule": os.path.abspath(folder),
                "result": result,
                "way": way,
                "written": sink.get("kind") in ("parameter", "state"),
                "threads": threads,
                **_values(way, options, scratch),
            },
            f,
        )
    environment = {**os.environ, **options["environment"], family.INJECT: order}
    command = [
        sys.executable,
        "-m",
        "finitude",
        "run",
        "--capsules",
        "0",
        "--runs",
        os.path.join(scratch, "runs"),
        "--report",
        os.path.join(scratch, "report.json"),
        *options["with"],
    ]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,
            timeout=options["timeout"],
            cwd=options["in"] or None,
        )
        ended = f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        ended = f"it did not come to its first step within {options['timeout']} s"
    except OSError as e:
        ended = e.strerror or ""
    try:
        with open(result, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return {
            "verdict": "not reached",
            "text": f"the program did not come to a step of an optimizer ({ended})"
            + _without_torch(options["with"], environment),
        }


def _without_torch(words, environment):
    """A hint where the command names a Python that is not ours, and has no torch."""
    target = targets.resolve(words[0], words[1:])
    if target.kind != "command" or not targets.PYTHON_NAME.match(os.path.basename(target.name)):
        return ""
    look = "import importlib.util, sys; sys.exit(77 if importlib.util.find_spec('torch') is None else 0)"
    try:
        code = subprocess.run(
            [target.name, "-c", look], env=environment, stdin=subprocess.DEVNULL, stdout=2, timeout=60
        ).returncode
    except (OSError, subprocess.SubprocessError):
        return ""
    named = target.name if words[0] == target.name else f"{words[0]} ({target.name})"
    return (
        f"; {named} has no torch: without a Python in front, or with {sys.executable}, it is run where finitude is"
        if code == 77
        else ""
    )


def _part(document, key):
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _recorded(about):
    """The birth that the capsule records, or None."""
    births = _part(about, "alarm").get("births")
    return births[0] if isinstance(births, list) and births and isinstance(births[0], dict) else None


def _place(birth):
    line = f"  {os.path.basename(str(birth['file']))}:{birth.get('line')}" if birth.get("file") else ""
    source = f"  {birth['source']}" if birth.get("source") else ""
    return f"{birth.get('op') or birth.get('phase')}{line}{source}"


def _number(value):
    return value if isinstance(value, str) else f"{value:.6g}"


def _text(about, result):
    was = _recorded(about)
    lines = []
    if result["verdict"] == "fixed":
        loss = f": loss {_number(result['loss'])}" if result.get("loss") is not None else ""
        if result.get("fix") is False:
            lines.append(f"no fix{loss}: {result['text']}, but {result['objection']}")
        else:
            lines.append(f"fixed{loss}; {result['text']}{untouched.praise(result.get('values'))}")
    elif result["verdict"] == "not fixed":
        birth = result.get("birth")
        which = (
            "no birth was found"
            if not birth
            else ("the same birth" if result["same_birth"] else "another birth") + "  " + _place(birth)
        )
        lines.append("not fixed: " + which + (f"; {result['text']}" if result["text"] else ""))
    else:
        lines.append(f"undecided: {result['text']}")
    if was and result["verdict"] != "not fixed" or was and not result.get("same_birth"):
        lines.append(f"  recorded: {_place(was)}")
    if (cause := result.get("cause")) and cause.get("class") not in (None, "unknown"):
        lines.append(f"  cause: {cause['class']}: {cause['text']}")
    if result.get("put"):
        where = f"; the program had run up to step {about['step'] - 1}" if result["way"] == "step" else ""
        lines.append(f"  put in place: {result['put']}{where}")
    lines += [f"  {note}" for note in result.get("notes", ())]
    return "".join(printable(line) + "\n" for line in lines)


def _held_against(folder, about, options, scratch):
    """The unchanged program, then the changed one. The verdict "fixed" stays where the values that the birth did not
    touch are the same bits; `fix` says whether."""
    before, after = os.path.join(scratch, "before"), os.path.join(scratch, "after")
    os.mkdir(before)
    os.mkdir(after)
    environment, words = options["unchanged"]
    unchanged = _try_ways(
        folder, about, {**options, "environment": environment, "with": words, "in": options["against-in"]}, before
    )
    if unchanged["verdict"] != "not fixed":
        text = f"the unchanged program does not fail here: {unchanged['verdict']}: {unchanged['text']}"
        return {**unchanged, "verdict": "refused", "text": text, "fix": False}
    result = _try_ways(folder, about, {**options, "baseline": before, "birth": unchanged.get("birth")}, after)
    if result["verdict"] != "fixed":
        return {**result, "fix": False}
    why = untouched.objection(result.get("values"))
    return {**result, "fix": not why, "objection": why}


def _try(folder, name, options):
    about, why = _about(folder)
    if about is None:
        sys.stderr.write(f"finitude: {name} {why}\n")
        return EXIT_INPUT
    why = "is of a healthy step: there is nothing that could be fixed" if about.get("healthy") is True else ""
    if why := why or _why_not(about):
        sys.stderr.write(f"finitude: {name} {why}\n")
        return EXIT_CANNOT
    scratch = tempfile.mkdtemp(prefix="finitude-")
    try:
        attempt = _held_against if options["against"] else _try_ways
        result = attempt(folder, about, options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if result["verdict"] == "unreadable":
        sys.stderr.write(f"finitude: {name} {result['text']}\n")
        return EXIT_INPUT
    if options["json"]:
        was = _recorded(about)
        sys.stdout.write(
            json.dumps(
                safe({"schema": 1, "capsule": name, "step": about.get("step"), "recorded": was, **result}), indent=1
            )
            + "\n"
        )
    elif not options["quiet"]:
        sys.stdout.write(_text(about, result))
    if result.get("fix") is False and result["verdict"] == "fixed":
        return EXIT_NOT_FIXED
    return {"fixed": EXIT_FIXED, "not fixed": EXIT_NOT_FIXED}.get(result["verdict"], EXIT_CANNOT)


def main(rest: Sequence[str]) -> int:
    if "-h" in rest or "--help" in rest:
        sys.stdout.write(USAGE)
        return 0
    try:
        name, options = _parse(rest)
    except _Usage as e:
        sys.stderr.write(f"finitude: {e}\n(finitude replay --with --help shows the options)\n")
        return EXIT_USAGE
    try:
        with pack.unpacked(name) as folder:
            return _try(folder, name, options)
    except pack.Refused as e:
        sys.stderr.write(f"finitude: {e}\n")
        return EXIT_INPUT
