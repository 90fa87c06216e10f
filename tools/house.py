"""Measures the structure of the code and compares it with its goals: python tools/house.py (make house).

Exit code 1 where a figure is worse than its bound. A bound that is not yet the goal is what has been reached; it may
only come nearer to the goal."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "finitude"
LIVE = ("gate", "rewind", "standby")
NOT_MEASURED = None  # of what is not there to be measured

# Prints the files of the installed package with a function that is called from the gate's verdict on a bad step to the
# exception that reaches the script. `raise` explains nothing.
BAD_STEP = """
import os, sys
import torch
import finitude

home = os.path.dirname(finitude.__file__) + os.sep
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
entered = set()


def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(home):
        entered.add(frame.f_code.co_filename[len(home):])


with finitude.watch(on_alarm="raise"):
    for k in range(4):
        optimizer.zero_grad()
        (model(torch.ones(4, 4)).pow(2).mean() * (float("nan") if k == 3 else 1)).backward()
        try:
            if k == 3:
                sys.setprofile(note)
            optimizer.step()
        except finitude.NonFiniteError:
            sys.setprofile(None)
            print(*sorted(entered), sep="\\n")
"""


def python_files():
    return sorted(PACKAGE.rglob("*.py"))


def functions_with_session():
    """Functions of the package with a parameter `session`: each of them may depend on all of a run."""
    count = 0
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                count += any(a.arg == "session" for a in given)
    return count


def files_of_a_bad_step():
    """Files of the package that a bad step enters which is not explained; NOT_MEASURED where it is not installed."""
    if importlib.util.find_spec("finitude") is None:
        return NOT_MEASURED
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FINITUDE_")}
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run(
            [sys.executable, "-c", BAD_STEP], cwd=folder, env=environment, capture_output=True, text=True
        )
    if got.returncode != 0 or not got.stdout.strip():
        raise RuntimeError(f"the bad step raised nothing: {got.stderr[-2000:]}")
    return len(got.stdout.split())


def comment_share(paths):
    """Lines that begin with // for each other line that is not empty."""
    comments = code = 0
    for path in paths:
        for line in path.read_text().splitlines():
            if line.strip().startswith("//"):
                comments += 1
            elif line.strip():
                code += 1
    return comments / code


def lines_of(paths):
    return sum(len([line for line in p.read_text().splitlines() if line.strip()]) for p in paths)


def cpp_share():
    """Of the lines of the product, without tests and fuzz targets, those in C++."""
    cpp = [
        p
        for folder in ("src", "include")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in (".h", ".cpp", ".cu", ".inc") and not p.stem.endswith(("_test", "_fuzz"))
    ]
    ours = lines_of(cpp)
    return ours / (ours + lines_of(python_files()))


# what, how it is measured, unit, bound, the goal, is more better
MEASURES = (
    ("functions that take the session", functions_with_session, "", 15, 15, False),
    ("lines of session.py", lambda: lines_of([PACKAGE / "session" / "session.py"]), "", 149, 150, False),
    ("files entered by a bad step that is not explained", files_of_a_bad_step, "", 15, 15, False),
    ("comments per line of code, include/", lambda: comment_share((ROOT / "include").rglob("*.h")), "", 0.5, 0.5, True),
    (
        "comments per line of code, bodies of the live half",
        lambda: comment_share(p for folder in LIVE for p in (ROOT / "src" / folder).glob("*.cpp")),
        "",
        0.10,
        0.10,
        True,
    ),
    (
        "CHANGELOG.md and docs/limits.md",
        lambda: sum((ROOT / name).stat().st_size for name in ("CHANGELOG.md", "docs/limits.md")) / 1000,
        "kB",
        20,
        20,
        False,
    ),
    ("C++ share of the product's lines", cpp_share, "", 0.60, 0.60, True),
)


def main():
    worse = 0
    print(f"{'':52}{'now':>9}{'bound':>9}{'goal':>9}")
    for name, measure, unit, bound, goal, more in MEASURES:
        now = measure()
        if now is NOT_MEASURED:
            print(f"{name:52}{'-':>9}{bound:>9}{goal:>9}   not measured: finitude is not installed in this Python")
            continue
        holds = now >= bound if more else now <= bound
        worse += not holds
        shown = [f"{x:.3g}{' ' + unit if unit else ''}" for x in (now, bound, goal)]
        print(f"{name:52}{shown[0]:>9}{shown[1]:>9}{shown[2]:>9}{'' if holds else '   worse than its bound'}")
    print("circles, sizes of files, folders: tests/layers/check_layers.py; annotations: tools/types_check.py")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
