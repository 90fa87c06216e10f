"""docs/causes.md: a worked case for every cause class, or an honest word that there is none."""

import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import causes_page  # noqa: E402

TEXT = causes_page.PAGE.read_text()
SECTIONS = causes_page.sections(TEXT)
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
CLASSES = SCHEMA["$defs"]["cause"]["properties"]["class"]["anyOf"][1]["enum"]


def test_every_class_has_its_section():
    assert sorted(SECTIONS) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_section_has_words_and_a_case_or_says_that_there_is_none(name):
    section = SECTIONS[name]
    box = causes_page.BOX.search(section)
    words = section[: box.start()] if box else section
    assert len(re.findall(r"[.:;]\s", words)) >= 2, "two sentences at least"
    if box is None:
        assert "No case of the zoo ends in this class." in section
        return
    expected = json.loads((ROOT / "zoo" / "positive" / box.group(2) / "expected.json").read_text())
    assert name in expected["cause"], f"{box.group(2)} is not a case of {name}"
    shown = box.group(3)
    assert f"({name})" in shown and "born in" in shown, "docs/causes.md is written by `make bench-docs`"


def test_where_a_case_shows_a_class_the_page_does_not_say_that_there_is_none():
    accepted = [json.loads(p.read_text()).get("cause", []) for p in (ROOT / "zoo" / "positive").glob("*/expected.json")]
    first = {causes[0] for causes in accepted if len(causes) == 1}
    without = {name for name, section in SECTIONS.items() if not causes_page.BOX.search(section)}
    assert not (without & first)


def test_only_the_box_is_written(monkeypatch, tmp_path):
    page = tmp_path / "causes.md"
    page.write_text("## overflow\n\nWords.\n\n<!-- case: P07_vae -->\n```text\nold\n```\n\n## unknown\n\nOther words.\n")
    report = {"alarms": [{"cause": {"class": "overflow"}}]}
    monkeypatch.setattr(causes_page, "PAGE", page)
    monkeypatch.setattr(causes_page, "run", lambda cases, folder: {c.slug: report for c in cases})
    monkeypatch.setattr(causes_page, "excerpt", lambda one: "new\n")
    assert causes_page.main([]) == 0 and page.read_text().count("new\n") == 1 and "old" not in page.read_text()
    report["alarms"][0]["cause"]["class"] = "exp-overflow"
    assert causes_page.main([]) == 1, "a report that says another class is not shown"
