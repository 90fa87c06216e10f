"""Puts what `finitude run` prints of a zoo case, or of a program of examples/causes, into docs/causes.md, for every
cause class.

python tools/causes_page.py [CLASS...]     runs the cases and rewrites the boxes; exit code 1 where a report says
another class"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "causes.md"
EXAMPLES = ROOT / "examples" / "causes"
BOX = re.compile(
    r"(<!-- case: (\S+) -->\n```text\n)(.*?)(```)", re.S
)  # a slug of the zoo, or the name of a file of examples/causes
SECTION = re.compile(r"^## (\S+)$", re.M)
WIDTH = 110


def sections(text):
    """{class: text of its section}, in order."""
    parts = SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2]))


def excerpt(report, cause):
    """The first alarm of that class (another rank's may come before it) as the terminal shows it, without the lines
    about how the run ended."""
    from finitude import _native

    alarm = next((a for a in report["alarms"] if a["cause"]["class"] == cause), report["alarms"][0])
    one = {**report, "alarms": [{**alarm, "capsule": None}], "advisories": []}
    text = _native.render_terminal(json.dumps(one), False, WIDTH, False)
    kept = [line.rstrip() for line in text.splitlines() if not re.match(r"\s*(capsule|report)\s", line)]
    return re.sub(r"\n{2,}", "\n", "\n".join(kept)).strip("\n") + "\n"


def run(cases, folder):
    """{slug: report} of these cases, run as the zoo runs them."""
    from zoo import runner

    runner.import_once()
    ended = {}
    runner.execute(
        [(case, pathlib.Path(folder), case.expected.get("cold", False)) for case in cases],
        1,
        120,
        lambda one: ended.__setitem__(one.case.slug, one.report()),
    )
    return ended


def _start(folder, words):
    subprocess.run([sys.executable, "-m", "finitude", *words], cwd=folder, capture_output=True, timeout=300)


def run_example(name, folder, start=_start):
    """The report of a program of examples/causes, run with the command line that its docstring gives, else alone.
    start(folder, words): runs `finitude *words` there."""
    program = EXAMPLES / name
    words = re.search(rf"finitude run (.*){re.escape(name)}$", program.read_text(), re.M)
    own = pathlib.Path(folder, program.stem)
    own.mkdir()
    shutil.copy(program, own)
    start(own, ["run", "--report", "report.json", *(words[1].split() if words else ()), name])
    return json.loads((own / "report.json").read_text())


def shows(report, cause):
    """What class the report gives: that one, if any of its alarms is of it."""
    found = [alarm["cause"]["class"] for alarm in report["alarms"]] if report else []
    return cause if cause in found else next(iter(found), "no alarm")


def main(wanted):
    from zoo import cases

    text = PAGE.read_text()
    by_class = {name: match.group(2) for name, part in sections(text).items() if (match := BOX.search(part))}
    chosen = {c: slug for c, slug in by_class.items() if not wanted or c in wanted}
    known = {case.slug: case for case in cases.load()}
    folder = tempfile.mkdtemp()  # no TemporaryDirectory: a forked case would remove it as it ends
    try:
        reports = run([known[slug] for slug in chosen.values() if not slug.endswith(".py")], folder)
        reports.update((slug, run_example(slug, folder)) for slug in chosen.values() if slug.endswith(".py"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = 0
    for name, slug in chosen.items():
        report = reports.get(slug)
        if (found := shows(report, name)) != name:
            wrong += 1
            print(f"{slug} was to show {name}, its report says {found}")
            continue
        text = BOX.sub(
            lambda m: m.group(1) + excerpt(report, name) + m.group(4) if m.group(2) == slug else m.group(0), text
        )
    PAGE.write_text(text)
    print(f"docs/causes.md: {len(chosen) - wrong} cases")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
