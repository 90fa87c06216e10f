"""A command without a path takes the newest run, or its newest capsule, and says which; where there is none, what it
looked at."""

import datetime
import json
import os
import pathlib
import re
import shutil

import pytest

import helpers
import made_stores
from finitude.base import config, family

DATA = pathlib.Path(__file__).parents[1] / "data"
CAPSULE = DATA / "capsules" / "schema_1_statistics"
# What each takes.
TAKES = {
    "export --to csv": ("run", "20260103-healthy"),
    "rows": ("run", "20260103-healthy"),
    "policy": ("run", "20260103-healthy"),
    "ctl": ("run", "20260103-healthy"),
    "report": ("run", "20260103-healthy"),
    "doctor": ("run", "20260103-healthy"),
    "dump": ("traced run or capsule", "20260102-bad/step-000002"),
    "replay": ("capsule", "20260102-bad/step-000002"),
    "pack": ("capsule", "20260102-bad/step-000002"),
}


@pytest.fixture
def runs(tmp_path):
    """Two runs with a capsule, the newest without."""
    folder = tmp_path / "finitude-runs"
    for run, report in (
        ("20260101-old", "loss_forward"),
        ("20260102-bad", "loss_forward"),
        ("20260103-healthy", "clean"),
    ):
        (folder / run).mkdir(parents=True)
        shutil.copyfile(DATA / "reports" / f"{report}.json", folder / run / "report.json")
    made_stores.store(folder / "20260103-healthy", steps=5, parameters=0)
    for place in ("20260101-old/step-000009", "20260102-bad/step-000001", "20260102-bad/step-000002"):
        shutil.copytree(CAPSULE, folder / place)
    return folder


def untimed(text):
    """Without what a replay took."""
    return re.sub(r"[\d.]+ m?s\b", "", text)


@pytest.mark.parametrize("word", TAKES)
def test_the_newest_is_taken_and_named(runs, word):
    what, place = TAKES[word]
    path = f"finitude-runs/{place}"
    got = helpers.finitude(runs.parent, *word.split())
    assert got.err.splitlines()[0] == f"finitude: no path given: took the newest {what}, {path}", got.text()
    named = helpers.finitude(runs.parent, *word.split(), path)
    assert (got.code, untimed(got.out)) == (named.code, untimed(named.out)), (got.text(), named.text())
    assert got.code != 3 or word == "rows", got.text()  # the store has none


def test_diff_takes_the_newest_two(runs):
    got = helpers.finitude(runs.parent, "diff")
    old, new = "finitude-runs/20260101-old/step-000009", "finitude-runs/20260102-bad/step-000002"
    assert f"took the newest two, {old} and {new}\n" in got.err, got.text()
    assert (got.code, got.out) == (0, helpers.finitude(runs.parent, "diff", old, new).out), got.text()


def test_diff_of_two_traced_runs_needs_no_path(tmp_path):
    for run in ("20260101-a", "20260102-b"):
        (tmp_path / "finitude-runs" / run).mkdir(parents=True)
        shutil.copyfile(DATA / "reports" / "trace.json", tmp_path / "finitude-runs" / run / "report.json")
    got = helpers.finitude(tmp_path, "diff", "--json")
    assert got.code == 0 and json.loads(got.out)["verdict"] == "same", got.text()


def test_replay_takes_its_options_without_a_path(runs):
    got = helpers.finitude(runs.parent, "replay", "--threads", "1", "--check")
    assert got.code == 0 and "step-000002\n" in got.err, got.text()


@pytest.mark.parametrize(
    "words", [["replay", "--thread", "1"], ["replay", "--with", "a.py", "--bogus"], ["diff", "-x"]]
)
def test_wrong_option_without_path_is_wrong_usage(tmp_path, words):
    got = helpers.finitude(tmp_path, *words)
    assert (got.code, got.out) == (2, "") and "looked in" not in got.err, got.text()


@pytest.mark.parametrize("word", [*TAKES, "diff", "list", "live"])
def test_missing_run_names_the_places_searched(tmp_path, word):
    got = helpers.finitude(tmp_path, *word.split())
    assert (got.code, got.out) == (3, ""), got.text()
    assert f"found: looked in {tmp_path}/finitude-runs, which does not exist" in got.err, got.text()
    assert ("; expected folders" if word != "live" else "`finitude run` makes it") in got.err, got.text()
    assert ("finitude list DIR" if word == "list" else "FINITUDE_RUNS") in got.err, got.text()


def test_the_folder_may_be_named_by_the_environment(runs):
    runs.rename(runs.parent / "elsewhere")
    named = helpers.finitude(runs.parent, "list", "--quiet", env={"FINITUDE_RUNS": "elsewhere"})
    assert named.out.splitlines() == [
        f"elsewhere/{run}" for run in ("20260103-healthy", "20260102-bad", "20260101-old")
    ]
    assert helpers.finitude(runs.parent, "replay", env={"FINITUDE_RUNS": "elsewhere"}).code == 0


# -- --quiet and --json --


@pytest.mark.parametrize("word", ["replay", "diff", "doctor"])
def test_quiet_leaves_the_exit_code_alone(runs, word):
    loud, quiet = helpers.finitude(runs.parent, word), helpers.finitude(runs.parent, word, "--quiet")
    assert loud.out and (quiet.code, quiet.out, quiet.err) == (loud.code, "", ""), quiet.text()
    assert helpers.finitude(runs.parent, word, "-q").code == loud.code


@pytest.mark.parametrize("word", ["replay", "diff", "doctor", "report", "dump", "list", "pack", "ctl", "live"])
def test_quiet_does_not_hide_a_failure(tmp_path, word):
    got = helpers.finitude(tmp_path, word, "--quiet")
    assert got.code == 3 and "looked in" in got.err, got.text()


def test_quiet_keeps_output_of_printing_commands(runs):
    for word in ("report", "dump", "pack", "export --to csv", "export --to=csv -o -"):
        loud, quiet = (helpers.finitude(runs.parent, *word.split(), *also) for also in ([], ["-q"]))
        assert quiet.err == "" and quiet.out == loud.out != "", quiet.text()
    loud, quiet = helpers.finitude(runs.parent, "ctl"), helpers.finitude(runs.parent, "ctl", "-q")
    assert "nothing was changed so far" in loud.err and (quiet.code, quiet.out, quiet.err) == (0, "", ""), loud.text()
    page = helpers.finitude(runs.parent, "report", "--html", "p.html", "-q")
    assert (page.code, page.out, page.err) == (0, "", "") and (runs.parent / "p.html").is_file()


def test_json_of_each_word_is_one_document(runs):
    for word in ("list", "report", "replay", "diff", "doctor"):
        for quiet in ([], ["--quiet"]):
            got = helpers.finitude(runs.parent, word, "--json", *quiet)
            document = json.loads(got.out)
            assert got.code == 0 and isinstance(document, list if word == "list" else dict), got.text()
    lines = helpers.finitude(runs.parent, "dump", "--json").out.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines) and lines


def test_json_of_a_replay(runs):
    capsule = str(runs / "20260102-bad" / "step-000002")
    got = helpers.finitude(runs.parent, "replay", capsule, "--json")
    document = json.loads(got.out)
    assert (document["schema"], document["outcome"], document["capsule"]) == (1, "reproduced", capsule)
    assert untimed(document["text"]) == untimed(helpers.finitude(runs.parent, "replay", capsule).out)
    assert helpers.finitude(runs.parent, "replay", capsule, "--json", "--break", "log").code == 2


def test_runs_of_one_second_sort_by_time_and_not_by_script(tmp_path):
    second = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.timezone.utc)
    settings = config.Config(runs=str(tmp_path))
    early = family.run_path(settings, "z.py", second.replace(microsecond=9_999))
    late = family.run_path(settings, "a.py", second.replace(microsecond=10_000))
    assert early < late and early.endswith(f"-009-z-{os.getpid()}"), (early, late)
