"""The tables of docs/compatibility.md of loops and launchers.

python tests/compatibility/page.py        runs every row and writes the table again (some minutes)
"""

import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import measure
import rows

PAGE = HERE.parents[1] / "docs" / "compatibility.md"
BEGIN, END = "<!-- shapes: written by tests/compatibility/page.py -->", "<!-- end of shapes -->"
COLUMNS = ("detected", "vetoed", "way", "verified", "line", "effects")
HEAD = "| shape | detected | vetoed | second run | bits | birth line | side effects |"


def way_in_words(cells):
    return cells["way"] if cells["rerun"] in ("persistent", "not-run") else f"{cells['way']}: {cells['rerun']}"


def line_of(shape, cells):
    shown = {
        **cells,
        "way": way_in_words(cells),
        "verified": {"yes": "same", "no": "-"}.get(cells["verified"], cells["verified"]),
    }
    return "| " + " | ".join([shape, *(shown[column] for column in COLUMNS)]) + " |"


def table(title, lines):
    return ["", f"### {title}", "", HEAD, "|---" * (len(COLUMNS) + 1) + "|", *lines]


def body(cells_of):
    """The text between the markers. cells_of: {row name: cells}."""
    lines = []
    for title, group in rows.GROUPS.items():
        lines += table(title, [line_of(row.shape, cells_of[row.name]) for row in group])
    return "\n".join([*lines, ""])


def expected_cells():
    return {
        row.name: {column: getattr(row, column) for column in (*COLUMNS, "rerun")}
        for group in rows.GROUPS.values()
        for row in group
    }


def written():
    """What stands between the markers now."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) + 1 : text.index(END)]


def write(cells_of):
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        text[: text.index(BEGIN) + len(BEGIN)] + "\n" + body(cells_of) + text[text.index(END) :], encoding="utf-8"
    )


def main():
    found, bad = {}, 0
    for group in rows.GROUPS.values():
        for row in group:
            with tempfile.TemporaryDirectory() as folder:
                found[row.name] = measure.of(row, pathlib.Path(folder))
            wrong = [c for c in (*COLUMNS, "rerun") if found[row.name][c] != getattr(row, c)]
            bad += bool(wrong)
            print(row.name, *(f"{c}: {found[row.name][c]}, not {getattr(row, c)}" for c in wrong), sep="  ", flush=True)
    write(found)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
