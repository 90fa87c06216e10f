"""The frameworks' rows of docs/compatibility.md are those of tests/frameworks/rows.json that `make test-frameworks` has
proven."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- rows of tests/frameworks/rows.json -->\n", "<!-- end of rows -->"
COLUMNS = ("detected", "vetoed", "way", "verified", "line", "effects")


def rows_as_markdown(rows):
    head = (
        "| program | detected | vetoed | second run | bits verified | birth line | a user sees besides |\n"
        + "|---" * 7
        + "|\n"
    )
    return head + "".join(
        f"| {row['shape']} | " + " | ".join(row[c] for c in COLUMNS) + " |\n" for row in rows if row["measured"]
    )


def test_the_page_shows_what_the_tests_measure():
    found = json.loads((ROOT / "tests/frameworks/rows.json").read_text())
    page = (ROOT / "docs/compatibility.md").read_text()
    assert page.split(BEGIN)[1].split(END)[0] == rows_as_markdown(found["rows"])
    assert all(f"{name} {version}" in page for name, version in found["versions"].items())
    pins = (ROOT / "requirements/frameworks.txt").read_text().splitlines()
    assert all(f"{name}=={version}" in pins for name, version in found["versions"].items())
