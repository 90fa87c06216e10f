"""docs/causes.md: a worked case for every cause class."""

import json
import pathlib
import re
import sys

import pytest

import helpers
from process_support import warm_launcher

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import causes_page  # noqa: E402

TEXT = causes_page.PAGE.read_text()
SECTIONS = causes_page.sections(TEXT)
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
CLASSES = SCHEMA["$defs"]["cause"]["properties"]["class"]["anyOf"][1]["enum"]


def test_every_class_has_its_section():
    assert sorted(SECTIONS) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_section_has_words_and_a_case(name):
    section = SECTIONS[name]
    box = causes_page.BOX.search(section)
    assert box is not None, f"{name} has no worked case"
    assert len(re.findall(r"[.:;]\s", section[: box.start()])) >= 2, "two sentences at least"
    if box.group(2).endswith(".py"):
        assert (causes_page.EXAMPLES / box.group(2)).stem == name.replace("-", "_")
    else:
        expected = json.loads((ROOT / "zoo" / "positive" / box.group(2) / "expected.json").read_text())
        assert name in expected["cause"], f"{box.group(2)} is not a case of {name}"
    shown = box.group(3)
    assert (f"({name})" in shown or name == "unknown") and "born in" in shown, (
        "docs/causes.md is written by `make bench-docs`"
    )


def run(folder, words):
    """Ranks are forked, by a launcher that does what torchrun comes to."""
    if "torchrun" not in words:
        return helpers.finitude(folder, *words)
    at = words.index("torchrun")
    assert words[at + 1 : -1] == ["--nproc-per-node", "2"]
    words = *words[:at], *warm_launcher(folder), words[-1]
    return helpers.finitude(folder, *words, cold=True, python=helpers.python_of_ranks())


@pytest.mark.parametrize("program", sorted(p.name for p in causes_page.EXAMPLES.glob("*.py")))
def test_example_program_ends_in_its_cause_class(tmp_path, program):
    report = causes_page.run_example(program, tmp_path, run)
    assert causes_page.shows(report, pathlib.Path(program).stem.replace("_", "-")) in CLASSES
    assert causes_page.shows(report, "no such class") != "no alarm"
    assert pathlib.Path(program).stem.replace("_", "-") in [alarm["cause"]["class"] for alarm in report["alarms"]]


def test_only_the_box_is_written(monkeypatch, tmp_path):
    page = tmp_path / "causes.md"
    page.write_text(
        "## overflow\n\nWords.\n\n<!-- case: P07_vae -->\n```text\nold\n```\n\n## unknown\n\nOther words.\n"
    )
    report = {"alarms": [{"cause": {"class": "overflow"}}]}
    monkeypatch.setattr(causes_page, "PAGE", page)
    monkeypatch.setattr(causes_page, "run", lambda cases, folder: {c.slug: report for c in cases})
    monkeypatch.setattr(causes_page, "excerpt", lambda one, cause: "new\n")
    assert causes_page.main([]) == 0 and page.read_text().count("new\n") == 1 and "old" not in page.read_text()
    report["alarms"][0]["cause"]["class"] = "exp-overflow"
    assert causes_page.main([]) == 1, "a report that says another class is not shown"
