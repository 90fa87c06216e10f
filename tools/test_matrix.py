"""The fast tests on other Pythons and torch versions; writes what was seen into docs/compatibility.md.

    python tools/test_matrix.py [PYTHON:TORCH ...]      default: 3.10:2.13.0 3.12:2.13.0 3.13:2.13.0 3.11:2.7.1

Each pair gets a venv and a build folder of its own under build/matrix. torch is installed without its dependencies: a
CUDA build would bring gigabytes that the CPU never loads, so tools/stub_libraries.py stands in for what is missing.
Pythons are looked for under $PYENV_ROOT/versions (or ~/.pyenv/versions), then on PATH. A pair whose Python is not here
is left as it was in the table. Outside CI; a few minutes and 1.5 GB per pair.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import stub_libraries

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- table: written by tools/test_matrix.py -->", "<!-- end of table -->"
DEFAULT_PAIRS = ("3.10:2.13.0", "3.12:2.13.0", "3.13:2.13.0", "3.11:2.7.1")
TORCH_DEPENDENCIES = "filelock typing_extensions sympy networkx jinja2 fsspec numpy setuptools".split()
BUILD_JOBS = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")  # a torch file takes about 1 GB to compile
TEST_DEPENDENCIES = (
    "safetensors scikit-build-core pytest pytest-xdist hypothesis jsonschema "
    "scikit-learn tqdm tomli;python_version<'3.11'"
).split()


def find_python(version):
    """A working interpreter of that minor version, or None. pyenv's shims answer only where a version is selected."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")) + [shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        answer = subprocess.run([str(candidate), "--version"], capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.startswith(f"Python {version}."):
            return str(candidate)
    return None


def run(title, command, log, **options):
    """Runs a step; True if it succeeded. Its output goes to the log."""
    started = time.monotonic()
    with log.open("a") as out:
        out.write(f"\n$ {' '.join(map(str, command))}\n")
        out.flush()
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, **options).returncode
    print(
        f"    {title}: {'done' if code == 0 else f'failed (exit {code})'}, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return code == 0


def try_pair(python, version, torch, folder):
    """ "tested", "compiled" (it builds and imports, but a test fails) or a reason that starts with "failed"."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    log.write_text("")
    print(f"    log: {log.relative_to(ROOT)}", flush=True)
    venv_python = folder / "venv/bin/python"
    pip = [venv_python, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    steps = (
        ("environment", [python, "-m", "venv", folder / "venv"]),
        (f"torch {torch}", [*pip, "--no-deps", f"torch=={torch}"]),
        ("packages", [*pip, *TORCH_DEPENDENCIES, *TEST_DEPENDENCIES]),
    )
    for title, command in steps:
        if not run(title, command, log):
            return f"failed: {title}"

    torch_folder = folder / f"venv/lib/python{version}/site-packages/torch"
    stubs = folder / "stubs"
    shutil.rmtree(stubs, ignore_errors=True)
    made = stub_libraries.make_stubs(torch_folder, stubs)
    for (
        library
    ) in made:  # where torch's own libraries look too: programs of the tests are started without LD_LIBRARY_PATH
        shutil.copy(stubs / library, torch_folder / "lib" / library)
    print(f"    stand-ins for {len(made)} CUDA libraries", flush=True)

    paths = f"{stubs}:{os.environ['LD_LIBRARY_PATH']}" if os.environ.get("LD_LIBRARY_PATH") else str(stubs)
    environment = os.environ | {
        "LD_LIBRARY_PATH": paths,
        "PATH": f"{venv_python.parent}:{os.environ['PATH']}",
        "CMAKE_BUILD_PARALLEL_LEVEL": BUILD_JOBS,
    }
    build_folder = f"--config-settings=build-dir={folder / 'cmake'}"  # -C came with pip 23.1, Python 3.10 brings 23.0
    build = ["--no-build-isolation", "--no-deps", "--force-reinstall", build_folder, "."]
    if not run("extension", [*pip, *build], log, env=environment):
        return "failed: build"
    load = [venv_python, "-c", "import torch, finitude._native"]
    if not run("import", load, log, env=environment):
        return "failed: import"
    tests = [
        venv_python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "fast",
        "-p",
        "no:cacheprovider",
        "-n",
        str(os.cpu_count()),
        "--dist",
        "loadscope",
    ]
    passed = run("fast tests", tests, log, env=environment)
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
    """Puts one outcome into the page. A pair that CI tests keeps that mark."""
    text = PAGE.read_text()
    cells = read_table(text)
    key = (".".join(torch.split(".")[:2]), version)
    today = datetime.date.today().isoformat()
    if "CI" not in cells.get(key, ""):
        cells[key] = f"{outcome} ({torch}, {today})"
    PAGE.write_text(write_table(text, cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", metavar="PYTHON:TORCH", nargs="*", default=DEFAULT_PAIRS)
    pairs = parser.parse_args().pairs
    for pair in pairs:
        if not re.fullmatch(r"3\.\d+:\d+(\.\d+)+", pair):
            parser.error(f"{pair}: want PYTHON:TORCH, such as 3.12:2.13.0")
    bad = 0
    for number, pair in enumerate(pairs, 1):
        version, torch = pair.split(":")
        print(f"[{number} of {len(pairs)}] torch {torch} on Python {version}", flush=True)
        python = find_python(version)
        if python is None:
            print(f"    no Python {version} here: the table keeps what it says")
            continue
        outcome = try_pair(python, version, torch, ROOT / f"build/matrix/python{version}-torch{torch}")
        print(f"    {outcome}")
        record(version, torch, outcome)
        bad += outcome != "tested"
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
