"""The reports of several processes, made one."""

import copy
import json
import pathlib

import jsonschema
import pytest
import torch  # noqa: F401  its libraries

from finitude.agents import roots
from finitude.base import config
from finitude.report import merge
from finitude.report.document import Report

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "report.schema.json").read_text()))
SAMPLES = {p.stem: json.loads(p.read_text()) for p in (ROOT / "tests" / "data" / "reports").glob("*.json")}


def report(steps=0, alarms=(), ranks=1, **more):
    watched = {
        **dict.fromkeys(merge.COUNTS, 0),
        "steps": steps,
        "backward_calls": steps,
        "gradients_scanned": 4 * steps,
    }
    watched.update({"ranks": ranks} if ranks > 1 else {})
    outcome = "alarm" if alarms else "clean" if steps else "unwatched"
    return {
        "schema": 1,
        "outcome": outcome,
        "reason": "" if steps or alarms else "nothing trained",
        "watched": watched,
        "alarms": list(alarms),
        "advisories": [],
        "command": [],
        **more,
    }


def alarm(step, rank, kind="loss", births=(), cause="unknown"):
    return {
        **copy.deepcopy(SAMPLES["loss_forward"]["alarms"][0]),
        "step": step,
        "rank": rank,
        "sink": {"kind": kind, "name": kind},
        "births": list(births),
        "cause": {"class": cause, "confidence": "possible", "text": "as given", "experiments": []},
    }


def put(folder, **reports):
    for name, content in reports.items():
        path = folder / name.replace("_", "-")
        path.mkdir()
        if content is not None:
            (path / "report.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return merge.members(folder)


def merged(folder, own=None, **reports):
    found = merge.merged(own or report(), put(folder, **reports))
    assert [f"{e.json_path}: {e.message}" for e in SCHEMA.iter_errors(found)] == []
    return found


def test_alone_a_report_stays_as_it_is(tmp_path):
    for sample in SAMPLES.values():
        assert merge.merged(sample, merge.members(tmp_path / "nowhere")) == sample


def test_ranks_step_together_and_other_processes_separately(tmp_path):
    found = merged(tmp_path, rank_0=report(10, ranks=2), rank_1=report(10, ranks=2), pid_7=report(3), pid_8=report(4))
    assert found["outcome"] == "clean" and found["watched"]["ranks"] == 2
    assert (found["watched"]["steps"], found["watched"]["gradients_scanned"]) == (17, 4 * 27)
    line = "finitude: 17 steps on 2 ranks watched, 108 gradients scanned, all finite"
    assert merge.closing_line(found) == line + "."
    assert merge.closing_line(found, "r.json") == line + ". Report: r.json"
    assert merge.closing_line(found, "a/r.json", "a/r.html") == line + ". Report: a/r.json, page: r.html"
    assert merge.closing_line(found, "r.json", "a/r.html") == line + ". Report: r.json, page: a/r.html"
    # How long the run took is what the process that was started says.
    timed = merge.closing_line({**found, "seconds": 3.42}, "r.json")
    assert timed == line.replace(" watched,", " watched in 3.4 s,") + ". Report: r.json"


def test_restarted_rank_adds_its_steps(tmp_path):
    found = merged(
        tmp_path,
        rank_0=report(10, ranks=2),
        rank_0_77=report(5, ranks=2),
        rank_1=report(10, ranks=2),
        rank_1_78=report(5, ranks=2),
    )
    assert found["watched"]["steps"] == 15


def test_most_informative_rank_comes_first_within_a_step(tmp_path):
    birth = SAMPLES["loss_forward"]["alarms"][0]["births"][0]
    found = merged(
        tmp_path,
        rank_0=report(4, [alarm(3, 0, "gradient", [{**birth, "phase": "communication"}], "other-rank")], 2),
        rank_1=report(4, [alarm(3, 1, "loss", [birth])], 2),
        pid_9=report(9, [alarm(1, 0, "gradient")]),
    )
    assert [(a["step"], a["rank"]) for a in found["alarms"]] == [(1, 0), (3, 1), (3, 0)]
    assert (
        "came from rank 1" in found["alarms"][2]["cause"]["text"] and found["alarms"][1]["cause"]["text"] == "as given"
    )


def test_rank_that_made_a_value_precedes_its_receivers(tmp_path):
    """Where both have a bad loss, as with tensor parallel."""
    birth = {
        **SAMPLES["loss_forward"]["alarms"][0]["births"][0],
        "op": "aten::div",
        "file": "/home/train.py",
        "line": 9,
    }
    received = alarm(
        5, 0, "loss", [{**birth, "phase": "communication", "op": "_c10d_functional::all_reduce"}], "other-rank"
    )
    received["fix"] = {"text": "elsewhere", "verified": False, "file": "/home/train.py", "line": 11}
    found = merged(
        tmp_path,
        rank_0=report(4, [received], 2),
        rank_1=report(4, [alarm(5, 1, "loss", [birth], "division-by-zero")], 2),
    )
    assert [a["rank"] for a in found["alarms"]] == [1, 0]
    assert found["alarms"][1]["cause"]["text"] == "the value came from rank 1, where aten::div made it at train.py:9"
    assert (found["alarms"][1]["fix"]["text"], found["alarms"][1]["fix"]["line"]) == ("see the birth on rank 1", 9)


def test_unwatched_items_name_process_unless_common_to_all(tmp_path):
    one, two = report(5, ranks=2), report(5, ranks=2)
    one["watched"]["not_watched"] = ["both", "first"]
    two["watched"]["not_watched"] = ["both"]
    assert merged(tmp_path, rank_0=one, rank_1=two)["watched"]["not_watched"] == ["both", "rank 0: first"]


@pytest.mark.parametrize(
    "content", [None, "", "{", "[1]", "null", "{}", '{"watched": {}, "alarms": [], "advisories": []}']
)
def test_a_process_without_a_readable_report_is_named(tmp_path, content):
    found = merged(tmp_path, pid_5=content, pid_6=report(5))
    (text,) = found["watched"]["not_watched"]
    assert text.startswith("process 5: ended before it could write a report") and found["outcome"] == "clean"


def test_only_processes_that_left_nothing(tmp_path):
    assert merged(tmp_path, pid_5=None)["outcome"] == "unwatched"


def test_more_alarms_than_a_report_holds_are_counted(tmp_path):
    alarms = [alarm(step, 0) for step in range(600)]
    found = merged(tmp_path, rank_0=report(600, alarms, 2), rank_1=report(600, alarms, 2))
    assert len(found["alarms"]) == merge.MAX_ALARMS and found["advisories"][-1]["kind"] == "alarms-left-out"


def test_report_of_a_run_that_ends_while_it_explains_can_be_read(tmp_path):
    """The alarm under way is in it; it holds no more than a reader accepts, and the number of the others."""
    kept = Report(config.load({"runs": str(tmp_path)}, environ={}), "train.py", [])
    kept.alarms = [{"step": step, "text": "loss is NaN"} for step in range(merge.MAX_ALARMS)]
    kept.alarms_left_out = 7
    kept.begin({"step": 5000, "text": "loss is NaN"})
    document = kept.document()
    assert len(document["alarms"]) == merge.MAX_ALARMS and document["alarms"][-1]["step"] == 5000
    assert document["alarms_unlisted"] == 8 and merge.count_alarms(document) == merge.MAX_ALARMS + 8
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text(json.dumps(document))
    assert roots.summary(str(tmp_path / "run"), "run")["alarms"] == merge.MAX_ALARMS + 8


def test_other_folders_are_not_processes(tmp_path):
    assert put(tmp_path, steps=report(5), rank_x=report(5), pid_=report(5)) == []
