"""The fast tests on other Pythons and torch versions; writes what was seen into docs/compatibility.md.

    python tools/test_matrix.py [PYTHON:TORCH ...]      default: 3.10:2.13.0 3.12:2.13.0 3.13:2.13.0 3.11:2.7.1

Each pair gets a venv and a build folder of its own under build/matrix (torch_environments.py).
Pythons are looked for under $PYENV_ROOT/versions (or ~/.pyenv/versions), then on PATH. A pair whose Python is not here
is left as it was in the table. Outside CI; a few minutes and 1.5 GB per pair.
"""

import argparse
import datetime
import os
import re
import sys

from torch_environments import PAIR, ROOT, Environment, find_python, run

PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- table: written by tools/test_matrix.py -->", "<!-- end of table -->"
WHEEL = "; wheel"
DEFAULT_PAIRS = ("3.10:2.13.0", "3.12:2.13.0", "3.13:2.13.0", "3.11:2.7.1")
TEST_DEPENDENCIES = (
    "safetensors scikit-build-core pytest pytest-xdist hypothesis jsonschema "
    "scikit-learn tqdm tomli;python_version<'3.11'"
).split()


def try_pair(python, environment):
    """ "tested", "compiled" (it builds and imports, but a test fails) or a reason that starts with "failed"."""
    failed = environment.make(python, TEST_DEPENDENCIES)
    if failed:
        return f"failed: {failed}"
    log, variables = environment.log, environment.variables
    build = ["--no-build-isolation", "--no-deps", "--force-reinstall", environment.build_folder, "."]
    if not run("extension", [*environment.pip, *build], log, env=variables):
        return "failed: build"
    if not run("import", [environment.python, "-c", "import torch, finitude._native"], log, env=variables):
        return "failed: import"
    tests = "-m pytest -q -m fast -p no:cacheprovider --dist loadscope -n".split()
    passed = run("fast tests", [environment.python, *tests, str(os.cpu_count())], log, env=variables)
    print(f"    {log.read_text().splitlines()[-1]}", flush=True)  # pytest's own count
    return "tested" if passed else "compiled"


def read_table(text):
    """{(torch minor, python): cell} of the table between the markers."""
    body = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in body.splitlines() if "|" in line]
    pythons = [re.search(r"3\.\d+", cell).group() for cell in rows[0][1:]]
    return {(row[0], python): cell for row in rows[2:] for python, cell in zip(pythons, row[1:])}


def write_table(text, cells):
    """The page with the table made from the cells; rows are torch versions, newest first."""
    pythons = sorted({python for _, python in cells}, key=lambda name: int(name.split(".")[1]))
    torches = sorted({torch for torch, _ in cells}, key=lambda name: -int(name.split(".")[1]))
    lines = ["| torch | " + " | ".join(f"Python {python}" for python in pythons) + " |"]
    lines.append("|---" * (len(pythons) + 1) + "|")
    for torch in torches:
        lines.append(f"| {torch} | " + " | ".join(cells.get((torch, python), "untested") for python in pythons) + " |")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    return head + "\n" + "\n".join(lines) + "\n" + tail


def record(version, torch, outcome):
    """Puts one outcome into the page. A pair that CI tests keeps that mark, and each what is known of its wheel."""
    cells = read_table(PAGE.read_text())
    key = (".".join(torch.split(".")[:2]), version)
    before, mark, wheel = cells.get(key, "").partition(WHEEL)
    if "CI" not in before:
        before = f"{outcome} ({torch}, {datetime.date.today().isoformat()})"
    cells[key] = before + mark + wheel
    PAGE.write_text(write_table(PAGE.read_text(), cells))


def record_wheel(version, torch):
    """Marks a pair whose wheel was tested (wheels_test.py)."""
    cells = read_table(PAGE.read_text())
    key = (".".join(torch.split(".")[:2]), version)
    cells[key] = (
        f"{cells.get(key, 'untested').partition(WHEEL)[0]}{WHEEL} ({torch}, {datetime.date.today().isoformat()})"
    )
    PAGE.write_text(write_table(PAGE.read_text(), cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", metavar="PYTHON:TORCH", nargs="*", default=DEFAULT_PAIRS)
    pairs = parser.parse_args().pairs
    for pair in pairs:
        if not PAIR.fullmatch(pair):
            parser.error(f"{pair}: want PYTHON:TORCH, such as 3.12:2.13.0")
    bad = 0
    for number, pair in enumerate(pairs, 1):
        version, torch = pair.split(":")
        print(f"[{number} of {len(pairs)}] torch {torch} on Python {version}", flush=True)
        python = find_python(version)
        if python is None:
            print(f"    no Python {version} here: the table keeps what it says")
            continue
        outcome = try_pair(python, Environment(version, torch))
        print(f"    {outcome}")
        record(version, torch, outcome)
        bad += outcome != "tested"
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
