"""Every limit and threshold of the code on one page: writes docs/tuned-limits.md.

    python tools/tuned_limits.py [--check]      --check: exit code 1 where the page does not say what the code says

A limit is a numeric constant of a Python module (NAME = 3) or of C++ (constexpr int kName = 3) with a comment behind it
or above it that says what it bounds. Bit masks, sizes of file formats and constants of kernels are none: those folders
are not looked at."""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tuned-limits.md"
NOT_TUNED = ("src/sense", "src/base", "python/finitude/base/compat.py", "src/pyhost/python_compat.h")
CPP = re.compile(
    r"^\s*(?:inline |static )*constexpr (?:inline |static )?(?P<type>[\w:<>]+(?: [\w:<>]+)?) (?P<name>k[A-Z]\w*)"
    r"(?: = |\{)(?P<value>[^;{}]+)\}?;\s*(?://\s*(?P<note>.*))?$"
)
NUMERIC = re.compile(
    r"^(?:std::)?(?:u?int(?:8|16|32|64)?(?:_t)?|size_t|double|float|unsigned|long|Py_ssize_t|c?hrono::\w+|chrono::\w+|auto)$"
)


def comment_above(lines, at):
    """The last comment directly above that line, as one text; only where it has no other line between."""
    said = []
    for line in reversed(lines[:at]):
        text = line.strip()
        if not text.startswith(("//", "#")) or text.startswith(("#include", "#pragma", "#if", "#e", "#define")):
            break
        said.insert(0, text.lstrip("/# ").strip())
    return " ".join(said)


def first_sentence(text):
    return re.split(r"(?<=[.;:])\s", text.strip())[0].rstrip(".;:") if text else ""


def of_python(path):
    text = path.read_text()
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or node.lineno != node.end_lineno:
            continue
        name = getattr(node.targets[0], "id", "")
        inside = list(ast.walk(node.value))
        numbers = [n for n in inside if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
        allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        if not name.isupper() or not numbers or not all(isinstance(n, allowed) for n in inside):
            continue
        line = lines[node.lineno - 1]
        note = line[node.value.end_col_offset :].partition("#")[2].strip() or comment_above(lines, node.lineno - 1)
        yield name, ast.get_source_segment(text, node.value), note


def of_cpp(path):
    lines = path.read_text().split("\n")
    for at, line in enumerate(lines):
        found = CPP.match(line)
        if found and NUMERIC.match(found["type"].removeprefix("std::")):
            yield found["name"], found["value"].strip(), found["note"] or comment_above(lines, at)


def limits():
    """{folder: [(name, value, what it bounds, path)]}"""
    found = {}
    sources = [*ROOT.glob("python/finitude/**/*.py"), *ROOT.glob("src/**/*.h"), *ROOT.glob("src/**/*.cpp")]
    for path in sorted(sources):
        shown = path.relative_to(ROOT).as_posix()
        if shown.startswith(NOT_TUNED) or re.search(r"_(test|fuzz)\.cpp$|_tests?_", path.name):
            continue
        for name, value, note in of_python(path) if path.suffix == ".py" else of_cpp(path):
            if first_sentence(note):
                found.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(
                    (name, value, first_sentence(note), path.name)
                )
    return found


def page():
    found = limits()
    count = sum(map(len, found.values()))
    lines = [
        "# Tuned limits",
        "",
        f"Written by `tools/tuned_limits.py` from the comments of the code: {count} limits and thresholds, by folder.",
    ]
    for folder, rows in sorted(found.items()):
        lines += ["", f"## `{folder}`", "", "| limit | value | what it bounds | file |", "|---|---|---|---|"]
        for name, value, note, file in rows:
            cell = note.replace("|", "\\|")
            lines.append(f"| `{name}` | `{value}` | {cell} | {file} |".replace("`|", "` |"))
    return "\n".join(lines) + "\n"


def main():
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/tuned-limits.md does not say what the code says: run python tools/tuned_limits.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
