"""What the programs of this folder do under us, as rows for docs/compatibility.md.

rows.json holds the rows that the page shows; test_table.py runs every one of them and asserts that this is what comes
out. A row is stopped once and once left out (skip); what is expected comes from runs without us: of the same program,
in which the bad batch ruins the weights, and of one in which the batches of the bad step are not in the data at all.
"""

import functools
import importlib.metadata
import json
import pathlib
import re

from framework_runs import PROGRAMS, line_of, run, without_times

ROWS = pathlib.Path(__file__).parent / "rows.json"
BAD = 7  # a batch of the first of two epochs, of 12 each
SIZES = {
    "lightning_fit.py": {"accumulating": 3, "clip_value": 2, "manual": 2},
    "trainer_fit.py": {"accumulating": 3, "own_loss": 2},
    "accelerate_fit.py": {"accumulating": 3, "by_hand": 2},
}
BIRTHS = {
    "lightning_fit.py": {"": "return self.net(x / x.norm(dim=1, keepdim=True))"},
    "trainer_fit.py": {
        "": "first = first / first.norm(dim=1, keepdim=True)",
        "own_loss": 'loss = (nn.functional.cross_entropy(logits, labels, reduction="none") * weight).sum()',
    },
    "accelerate_fit.py": {"": "return self.net(x / x.norm(dim=1, keepdim=True))"},
}
NUMBER = re.compile(r"-?\b(\d+\.\d+(e[+-]?\d+)?|nan|inf)\b")
OURS = ("finitude-runs", "report.json")


@functools.cache
def rows():
    return json.loads(ROWS.read_text())


def configurations(program):
    return [row["configuration"] for row in rows()["rows"] if row["program"] == program]


def versions():
    return {name: importlib.metadata.version(name) for name in rows()["versions"]}


class Plain:
    """All configurations of a program without us: with good data, with the bad batch, and without the bad step's
    batches."""

    def __init__(self, program, folder):
        self.program, names = program, ",".join(configurations(program))
        self.healthy = run(folder / "healthy", program, names)
        self.bad = run(folder / "bad", program, names, str(BAD))
        self.without = run(folder / "without", program, names, str(BAD), "without")
        assert (self.healthy.code, self.bad.code, self.without.code) == (0, 0, 0), (
            self.healthy.text() + self.bad.text() + self.without.text()
        )


def last_line(name, got):
    """Digests of the weights and of all else, as the program prints them at its end."""
    return re.findall(rf"^{name} rest .*$", got.out, re.M)[-1]


def _lines_of(name, got):
    """What it prints, digests and figures masked: those of a run that is not ruined are others."""
    lines = [
        line for line in without_times(got.out).splitlines() if line.startswith(f"{name} ") and " rest " not in line
    ]
    return [NUMBER.sub("#", line) for line in lines]


def _scalars(file):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [(e.step, v.tag) for e in EventFileLoader(str(file)).Load() for v in e.summary.value]


def _left(name, got):
    """{path: what can be compared of it} of all that the configuration wrote."""
    found = {}
    for file in sorted((got.folder / name).rglob("*")):
        if not file.is_file() or any(part in OURS for part in file.parts):
            continue
        path = str(file.relative_to(got.folder))
        if "tfevents" in path:
            found["events " + "/".join(path.split("/")[:2])] = _scalars(file)
        elif file.suffix in (".csv", ".txt") and file.name != "digests.txt":
            found[path] = NUMBER.sub("#", file.read_text())
        else:
            found[path] = None
    return found


def effects(name, skipped, plain):
    """What a user sees of a run that went on, but for our words and the figures of the step left out."""
    found = []
    if last_line(name, skipped) != last_line(name, plain.without):
        found.append("training goes on in another way than after `continue`")
    if _lines_of(name, skipped) != _lines_of(name, plain.bad):
        found.append("prints other lines")
    now, before = _left(name, skipped), _left(name, plain.bad)
    found += [f"{path} differs" for path in sorted({*now, *before}) if now.get(path, 0) != before.get(path, 0)]
    return "; ".join(found) or "none"


def measure(program, name, stopped, skipped, plain):
    """The row that comes out of both runs, in the words of rows.json."""
    size = SIZES[program].get(name, 1)
    source = BIRTHS[program].get(name, BIRTHS[program][""])
    alarm = skipped.alarms[0]
    cells = []
    for got in (stopped, skipped):
        a = got.alarms[0]
        births = a["births"]
        place = (pathlib.Path(births[0]["file"]).name, births[0]["line"]) if births else None
        cells.append(
            {
                "detected": f"step {a['step']}, micro-batch {a['micro_batch']}, {a['sink']['kind']}",
                "way": a["rerun_by"],
                "rerun": a["rerun"],
                "verified": "yes" if a["rerun_verified"] else "no",
                "line": "none"
                if place is None
                else "right"
                if place == (program, line_of(program, source))
                else f"{place}",
            }
        )
    assert cells[0] == cells[1], "stop and skip report different things"
    before = (stopped.folder / name / "digests.txt").read_text().split()[-1]
    clean = stopped.code == 1 and "NonFiniteError" in stopped.err and last_line(name, stopped).endswith(before)
    on_time = (alarm["step"], alarm["micro_batch"]) == (BAD // size, BAD % size)
    return {
        "vetoed": "yes" if clean and alarm["weights"] == "clean" else "no",
        "step": "right" if on_time else "wrong",
        **cells[0],
        "effects": effects(name, skipped, plain),
    }


def program_text(program):
    return (PROGRAMS / program).read_text()
