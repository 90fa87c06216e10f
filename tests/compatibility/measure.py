"""Runs the program of a row without us and with us, and says what a user would see, in the words of the table."""

import ast
import pathlib
import re
import shutil

import notebooks

import helpers

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
OURS = ("finitude-runs", ".ipython", "report.json", ".stdout", ".stderr", "__pycache__")
NUMBER = re.compile(r"(?<![\w.])-?(\d+(\.\d+)?(e[+-]?\d+)?|nan|inf)(?![a-z\d])")  # the next word may follow at once
LEFT_OUT = ("the step was skipped", "the step was undone", "stopped", "the step was undone, stopped")
BAD = ("nan", "inf", "-nan", "-inf")


def birth_lines(program):
    """The lines of the statement that is marked as the birth."""
    text = program.read_text(encoding="utf-8")
    marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# birth")]
    assert len(marked) == 1, f"{program.name} marks {len(marked)} births"
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= marked[0] <= node.end_lineno
    ]
    inner = min(around, key=lambda node: node.end_lineno - node.lineno)
    return range(inner.lineno, inner.end_lineno + 1)


def words_of(row, program):
    return (
        [word.format(program=program, name=program.stem) for word in row.launcher] if row.launcher else [str(program)]
    )


def left_behind(folder):
    """What the program wrote: {path: bytes}."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not any(part in OURS for part in p.relative_to(folder).parts)
    }


def prepare(row, folder):
    """An empty folder with the program in it."""
    folder.mkdir()
    return pathlib.Path(shutil.copy(PROGRAMS / f"{row.program}.py", folder))


def watched(row, folder, policy):
    program = prepare(row, folder)
    if row.launcher == ("notebook",):
        return notebooks.run(folder, program, policy)
    return helpers.finitude(
        folder, "run", "--report", "report.json", "--on-alarm", policy, *words_of(row, program), cold=bool(row.launcher)
    )


def unwatched(row, folder):
    program = prepare(row, folder)
    words = words_of(row, program)
    if row.launcher == ("notebook",):
        return notebooks.run(folder, program, None)
    if not row.launcher:
        return helpers.plain(folder, *words)
    return helpers.plain(folder, *(words[1:] if words[0] == helpers.sys.executable else words), cold=True)


def line_of(birth, program):
    """ "right", or what is wrong with it. A birth in backward is reported by the forward op that its node belongs to."""
    place = birth["forward"] if birth["phase"] == "backward" and birth.get("forward") else birth
    if not place.get("line"):
        return "none"
    at = pathlib.Path(place["file"])
    is_there = at.name == program.name or not at.suffix  # the name of a notebook's cell
    return "right" if is_there and place["line"] in birth_lines(program) else f"{at.name}:{place['line']}"


def rerun_of(text):
    """What an advisory says of its second run."""
    stated = re.search(r"; (\w[\w-]*), by (\w+): (.*)", text)
    if stated is None:
        return {}
    return {
        "rerun": stated[1],
        "rerun_by": stated[2],
        "rerun_text": stated[3],
        "rerun_verified": "with the same bits" in stated[3],
    }


def finding_of(report):
    """(the first alarm or explained advisory, is it an alarm), or (None, False)."""
    if report["alarms"]:
        return report["alarms"][0], True
    return next(iter(report["advisories"]), None), False


def masked(text):
    return NUMBER.sub("#", text)


def is_saved(plain, skip):
    """Without us the weights were ruined, and every later number; with the step left out later numbers are finite.
    Where the program was not ruined, or printed less than we let it print, there is nothing to see."""
    before, after = ([m.group() for m in NUMBER.finditer(run.out)] for run in (plain, skip))
    ruined = [n for n, (a, b) in enumerate(zip(before, after)) if a in BAD and b not in BAD]
    return bool(ruined) or len(after) > len(before) or sum(a in BAD for a in before) <= 1


def effects(row, plain, skip, warn, folders):
    """What is different from a run without us, but for our words and the step that was left out."""
    found = []
    if warn is not None:
        if warn.out != plain.out:
            found.append("prints differ")
        if warn.code != plain.code:
            found.append(f"exit code {warn.code}")
        before, after = left_behind(folders["plain"]), left_behind(folders["warn"])
        found += [f"{name} differs" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if row.policy == "stop":
        if not plain.out.startswith(skip.out):
            found.append("prints differ")
    elif skip.code not in (0, plain.code):
        found.append(f"ends by exit code {skip.code} under skip")
    elif plain.code == 0 and masked(skip.out) != masked(plain.out):
        found.append("other lines under skip")
    return "; ".join(found) or "none"


def of(row, folder):
    """The cells of the row: {column: text}."""
    folders = {name: folder / name for name in ("plain", "skip", "warn")}
    plain = unwatched(row, folders["plain"])
    skip = watched(row, folders["skip"], row.policy)
    warn = None if row.launcher else watched(row, folders["warn"], "warn")
    finding, is_alarm = finding_of(skip.report)
    if finding is None:
        return {
            "detected": "no",
            "vetoed": "by the script",
            "way": "none",
            "rerun": "not-run",
            "verified": "no",
            "line": "none",
            "effects": effects(row, plain, skip, warn, folders),
            "output": skip.text(),
        }
    births = finding.get("births") or []
    left_out = is_alarm and finding["weights"] == "clean" and finding["action"] in LEFT_OUT and is_saved(plain, skip)
    rerun = finding if is_alarm else rerun_of(finding["text"])
    return {
        "detected": f"step {finding['step']}, {finding['sink']['kind']}"
        if is_alarm
        else f"advisory, step {finding['step']}",
        "vetoed": "by the script"
        if not is_alarm or "script's own" in finding.get("action", "")
        else "yes"
        if left_out
        else "no",
        "way": rerun.get("rerun_by", "none"),
        "rerun": rerun.get("rerun", "not-run"),
        "verified": "yes" if rerun.get("rerun_verified") else "no",
        "line": line_of(births[0], PROGRAMS / f"{row.program}.py") if births else "none",
        "effects": effects(row, plain, skip, warn, folders),
        "why": rerun.get("rerun_text", ""),
        "output": skip.text() + (warn.text() if warn else ""),
    }
