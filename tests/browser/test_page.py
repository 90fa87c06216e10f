"""The page of a report in a real browser: nothing fails, nothing is fetched, and everybody can read it."""

import pages
import pytest

pytestmark = pytest.mark.slow

SAMPLES = sorted(path.stem for path in pages.SAMPLES.glob("*.json"))
SCHEMES = ("light", "dark")
PHONE = 360


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def written(folder):
    pages.browser()
    made = {name: pages.write(folder, name, pages.sample(name)) for name in SAMPLES}
    made["diff"] = pages.write(folder, "diff", pages.with_diff())
    made["large"] = pages.write(folder, "large", pages.as_large_as_stories_get())
    return made


def is_judged(name, scheme):
    """Is axe asked? Of the large page it takes half a minute, and the page has no part that "diff" lacks, only more of
    each: so once."""
    return (name, scheme) != ("large", "light")


@pytest.fixture(scope="module")
def seen(written):
    """Every page, on a desk in the light and on a phone in the dark."""
    ask = ["scripts", "overflow", "contents", "headings"]
    views = [
        {"file": file, "ask": [*ask, *(["axe"] if is_judged(name, scheme) else [])], "scheme": scheme, "width": width}
        for name, file in written.items()
        for scheme, width in zip(SCHEMES, (1280, PHONE), strict=True)
    ]
    found = pages.look(*views)
    return {(name, scheme): found.pop(0) for name in written for scheme in SCHEMES}


def test_no_page_fails_or_fetches(seen):
    for name, found in seen.items():
        assert (found["errors"], found["requests"], found["scripts"]) == ([], [], 2), name


def test_axe_finds_nothing_in_either_theme(seen):
    judged = {one: found["axe"] for one, found in seen.items() if is_judged(*one)}
    assert len(judged) == len(seen) - 1 and not any(judged.values()), judged


def test_no_page_is_wider_than_its_window(seen):
    for name, found in seen.items():
        assert found["overflow"] <= 0, name


def test_contents_lead_to_one_place_each(seen):
    for name, found in seen.items():
        assert found["contents"] and all(n == 1 for _, n in found["contents"]), name
    assert [title for title, _ in seen["diff", "light"]["contents"]] == [
        "Cause and fix",
        "Flow of data",
        "Source and values",
        "Magnitudes",
        "Evidence",
        "Before the alarm",
        "Run it again",
        "Run",
    ]


def test_alarms_of_one_finding_are_one_story(folder, written):
    report = pages.with_diff()
    report["alarms"].append({**report["alarms"][0], "step": 413, "repeat_of": 412})
    (found,) = pages.look({"file": pages.write(folder, "repeated", report), "ask": ["headings", "text"]})
    assert [text for tag, text in found["headings"] if tag == "H2"].count("Step 412 stopped before the optimizer") == 0
    assert "Step 413: taken to be the same finding" in found["text"]


def test_a_story_prints_on_three_pages(written):
    for name, stories in (("diff", 1), ("large", 2)):
        (found,) = pages.look({"file": written[name], "ask": ["paper"]})
        assert found["paper"] <= 3 * stories + 1, f"{name}: one page more for the run itself"


def test_tab_reaches_picture_and_buttons_visibly(written):
    (found,) = pages.look({"file": written["diff"], "ask": ["stops"]})
    stops = found["stops"]
    assert stops[0]["name"] == "Skip to the report"
    assert [stop["name"] for stop in stops if not stop["visible"]] == []
    picture = [stop for stop in stops if stop["tag"] == "g"]
    assert [stop["name"].split(",")[0] for stop in picture] == [
        "Operand p",
        "Born in aten::log",
        "Output output",
        "Then aten::mul",
        "Then aten::sum",
        "Sink loss",
    ]
    assert "min 0" in picture[0]["tooltip"] and "3 zeros" in picture[0]["name"]
    assert "Copy the diff" in [stop["name"] for stop in stops]


def test_copy_gives_the_whole_diff(written):
    (found,) = pages.look({"file": written["diff"], "ask": ["copies"]})
    assert found["copies"][0] == pages.DIFF
    assert found["copies"][1].startswith("finitude replay finitude-runs/")


def test_the_picture_shows_each_state_by_shape_and_colour(written):
    (found,) = pages.look({"file": written["diff"], "ask": ["flow"]})
    boxes, edges = found["flow"]["boxes"], found["flow"]["edges"]
    states = {box["name"].split(",")[0]: [state for state, _ in box["states"]] for box in boxes}
    assert states["Operand p"] == ["finite"] and states["Output output"] == ["inf"], states
    assert states["Then aten::mul"] == states["Sink loss"] == ["nan"], states
    for drawn in ([one for box in boxes for one in box["states"]], edges):
        colours = {state: {colour for one, colour in drawn if one == state} for state, _ in drawn}
        assert {"finite", "inf", "nan"} <= set(colours) and all(len(one) == 1 for one in colours.values()), colours
        assert len(set.union(*colours.values())) == len(colours), colours
    assert len(edges) == len(boxes) - 1


def test_a_histogram_has_the_limits_of_its_dtype(written):
    report = pages.with_diff()
    tensor = report["alarms"][0]["births"][0]["inputs"][0]
    (found,) = pages.look({"file": written["diff"], "ask": ["histograms"]})
    (chart,) = found["histograms"]
    assert sum(chart["values"]) == tensor["numel"] - tensor["zero"] - tensor["nan"] - tensor["inf"] > 0, chart
    assert len(chart["limits"]) == 3 and chart["limits"] == sorted(chart["limits"]) and 0 < chart["limits"][0] < 1
    assert chart["words"] == ["subnormal", f"largest {tensor['dtype']}"] and f"{tensor['zero']} zeros" in chart["name"]


def test_the_line_of_the_birth_is_marked_among_others(written):
    report = pages.with_diff()
    birth = report["alarms"][0]["births"][0]
    birth["around"] = {"first": birth["line"] - 2, "source": "\n".join(["a", "b", birth["source"], "c"])}
    folder = written["diff"].parent
    (found,) = pages.look({"file": pages.write(folder, "around", report), "ask": ["sources"]})
    source = found["sources"][0]
    assert source["lines"] == 4 and source["marked"] == [[str(birth["line"]), birth["source"]]], source
    assert source["colour"] != source["other"]


def test_experiments_fold_and_are_printed(written):
    (found,) = pages.look({"file": written["diff"], "ask": ["folds"]})
    folded, opened, printed = found["folds"]
    count = len(pages.with_diff()["alarms"][0]["cause"]["experiments"])
    assert (folded, opened) == (0, count) and printed == count > 0, found["folds"]


def test_the_policy_lets_nothing_in(written):
    (found,) = pages.look({"file": written["diff"], "ask": ["intrusion"]})
    ran, loaded, fetched, policy = found["intrusion"]
    assert (ran, loaded, fetched) == (False, False, "TypeError") and policy.startswith("default-src 'none'"), found
    assert sum("Content Security Policy" in error for error in found["errors"]) >= 3, found["errors"]


def test_hostile_report_stays_text(written):
    (found,) = pages.look({"file": written["hostile"], "ask": ["html", "scripts"]})
    assert found["errors"] == [] and found["scripts"] == 2
    body = found["html"][found["html"].index('id="page"') : found["html"].index("<noscript")]
    assert "<script" not in body and "<img" not in body and "&lt;script&gt;alert(1)" in body
    assert "\u202e" not in found["html"]


def test_without_scripts_the_terminal_text_shows(written):
    (found,) = pages.look({"file": written["diff"], "scripts": False, "ask": ["text"]})
    assert "step 412 stopped before the optimizer: loss is NaN" in found["text"]
    assert "torch.log(p.clamp(min=1e-12))" in found["text"]
