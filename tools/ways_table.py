"""Which way to explain a bad step explains what, when it is the only one: writes docs/ways.md.

    python tools/ways_table.py [--jobs N] [--filter SUBSTR]     (about 30 minutes on two idle cores)

Every positive case of zoo/ and every program of the table of loops (tests/compatibility, those without a launcher) runs
once with all ways in their order, and once with each way alone. A way explains a program where the first alarm, or the
first explained advisory, has the same birth (operation and line) and the same cause as with all of them. Programs that
all ways together leave unexplained are not counted."""

import argparse
import collections
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "compatibility")]

from zoo import cases, runner  # noqa: E402

FOLLOWS = (
    "What follows:",
    "",
    "- A restart finds nearly everything, but it takes as long as the program took to come to the step, and needs a program",
    "  that can be started again: not a notebook, not `finitude.watch` in a service. So it is the last way.",
    "- The template tape and the rewind explain the same programs of the zoo; the others fail in their first step, or by what",
    "  an earlier step left, which only a restart sees. The tape also explains loops whose position cannot be set back, and",
    "  runs no code of the program twice; but it costs time in a healthy step (docs/overhead.md, `--tape-every`) and memory, so",
    "  it is tried first where it was asked for.",
    "- Calling once more serves few of these programs: it is for frameworks, whose loops hold state that no rewind can put",
    "  back. `make test-frameworks` shows it.",
)
# name: (ways of the ladder that are left, options)
WAYS = {
    "all": (None, ()),
    "template tape": (("TAPE",), ("--tape-every", "1")),
    "call": (("CALL",), ()),
    "rewind": (("REWIND",), ()),
    "restart": (("RESTART",), ()),
}
TEXTS = {
    "template tape": "`--tape-every 1`: a healthy step is recorded, and its operators are issued again with the values of "
    "the bad step",
    "call": "what the framework or the script called to take the step is called once more",
    "rewind": "the program returns from the vetoed call to the start of the step, and runs it again",
    "restart": "the program is started again in a second process, up to the step",
}


class Run(runner.Run):
    """One program with the ways named; forked, so that nothing of it is left."""

    def __init__(self, case, folder, way):
        self.ways, options = WAYS[way]
        self.way, self.options = way, options
        super().__init__(case, pathlib.Path(folder) / way.replace(" ", "-"), False)

    def start_warm(self):
        self.arguments[1:1] = self.options
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            if self.ways is not None:
                from finitude.rerun import ladder

                kept = tuple(getattr(ladder, name) for name in self.ways)
                for name in ("ALL", "IN_PLACE", "AFTERWARDS"):
                    setattr(ladder, name, tuple(way for way in getattr(ladder, name) if way in kept))
            os._exit(runner.forked_child(self))
        return pid


def finding(report):
    """(birth's operation and line, cause) of the first explained alarm or advisory, or None."""
    if report is None:
        return None
    for entry in [*report["alarms"][:1], *report["advisories"]]:
        for birth in entry.get("births") or ():
            place = birth.get("forward") if birth["phase"] == "backward" and birth.get("forward") else birth
            return (birth["op"], place["line"]), (entry.get("cause") or {}).get("class")
    return None


def programs(part):
    """(group, case) of each that is to run."""
    for case in cases.load():
        if case.positive and part in case.slug:
            yield "zoo", case
    import measure
    import rows

    for group in rows.GROUPS.values():
        for row in group:
            if not row.launcher and part in row.program:
                script = measure.PROGRAMS / f"{row.program}.py"
                yield "loops", types.SimpleNamespace(slug=f"loop-{row.program}", script=script, name=row.program)


def measured(chosen, folder, jobs):
    """{(group, slug): {way: finding}}."""
    found = collections.defaultdict(dict)
    group_of = {case.slug: group for group, case in chosen}
    waiting, running = [(case, way) for way in reversed(WAYS) for _, case in reversed(chosen)], []
    while waiting or running:
        while waiting and len(running) < jobs:
            case, way = waiting.pop()
            running.append(Run(case, folder, way))
        for run in list(running):
            if run.poll(120):
                running.remove(run)
                found[group_of[run.case.slug], run.case.slug][run.way] = finding(run.report())
                print(f"{len(waiting):5} left", end="\r", file=sys.stderr)
        runner.time.sleep(runner.POLL_SECONDS)
    return found


def page(found, machine):
    lines = [
        "# What each way to explain a bad step is worth alone",
        "",
        "Written by `tools/ways_table.py`, which says how it counts. Finitude tries the ways in the order of the table and",
        "takes the first that serves (`python/finitude/rerun/ladder.py`).",
        "",
        f"Machine: {machine}.",
        "",
        "| way alone | what it does | zoo: same birth and cause | same birth | loops: same birth and cause | same birth |",
        "|---|---|---|---|---|---|",
    ]
    totals, missed = {}, collections.defaultdict(list)
    for group in ("zoo", "loops"):
        totals[group] = [key for key, ways in found.items() if key[0] == group and ways.get("all")]
    for way in list(WAYS)[1:]:
        cells = []
        for group in ("zoo", "loops"):
            same = [key for key in totals[group] if found[key].get(way) == found[key]["all"]]
            birth = [key for key in totals[group] if (found[key].get(way) or [None])[0] == found[key]["all"][0]]
            missed[way] += [key[1].removeprefix("loop-") for key in totals[group] if key not in birth]
            cells += [f"{len(same)} of {len(totals[group])}", str(len(birth))]
        lines.append(f"| {way} | {TEXTS[way]} | {' | '.join(cells)} |")
    only = collections.Counter()
    for group in totals:
        for key in totals[group]:
            good = [way for way in list(WAYS)[1:] if (found[key].get(way) or [None])[0] == found[key]["all"][0]]
            if len(good) == 1:
                only[good[0], group] += 1
    lines += ["", "Programs whose birth only this way finds: "]
    lines[-1] += "; ".join(f"{way} {only[way, 'zoo']} of the zoo, {only[way, 'loops']} loops" for way in list(WAYS)[1:])
    lines[-1] += "."
    lines += ["", *FOLLOWS, "", "## Without the right birth", ""]
    for way, names in missed.items():
        shown = ", ".join(sorted(names)) if len(names) <= 60 else f"{len(names)} programs"
        lines.append(f"- **{way}**: {shown or 'none'}")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument(
        "--filter", default="", metavar="SUBSTR", help="only programs whose name contains this; prints the page"
    )
    options = p.parse_args()
    chosen = list(programs(options.filter))
    version, _ = runner.import_once()
    folder = tempfile.mkdtemp(prefix="finitude-ways-")  # not TemporaryDirectory: each fork would remove it as it ends
    found = measured(chosen, folder, options.jobs)
    shutil.rmtree(folder, ignore_errors=True)
    text = page(
        found, f"{os.cpu_count()} cores, {platform.machine()}, torch {version}, Python {platform.python_version()}"
    )
    if options.filter:
        print(text)
    else:
        (ROOT / "docs" / "ways.md").write_text(text)


if __name__ == "__main__":
    main()
