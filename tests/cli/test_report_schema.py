"""docs/report.schema.json accepts the sample reports and refuses broken ones."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
REPORTS = {p.stem: json.loads(p.read_text()) for p in sorted((ROOT / "tests" / "data" / "reports").glob("*.json"))}
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", REPORTS)
def test_sample_is_valid(name):
    errors = [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(REPORTS[name])]
    assert errors == []


def test_samples_cover_every_outcome_and_birth_place():
    assert {r["outcome"] for r in REPORTS.values()} == {"clean", "alarm", "unwatched"}
    phases = {b["phase"] for r in REPORTS.values() for a in r["alarms"] for b in a["births"]}
    assert {"forward", "backward", "data", "optimizer"} <= phases


def put(report, path, value):
    *way, last = path
    for key in way:
        report = report[key]
    report[last] = value


BROKEN = {
    "schema 2": (("schema",), 2),
    "unknown outcome": (("outcome",), "fine"),
    "alarm without alarms": (("alarms",), []),
    "negative step": (("alarms", 0, "step"), -1),
    "step as text": (("alarms", 0, "step"), "412"),
    "unknown sink": (("alarms", 0, "sink", "kind"), "weights"),
    "unknown cause": (("alarms", 0, "cause", "class"), "bad-luck"),
    "confidence as number": (("alarms", 0, "cause", "confidence"), 0.9),
    "verified as text": (("alarms", 0, "fix", "verified"), "yes"),
    "misspelt key": (("alarms", 0, "birth"), []),
    "inf spelled otherwise": (("alarms", 0, "births", 0, "inputs", 0, "max"), "inf"),
    "NaN count": (("alarms", 0, "births", 0, "outputs", 0, "nan"), "NaN"),
    "unknown phase": (("alarms", 0, "births", 0, "phase"), "somewhere"),
    "unknown rerun": (("alarms", 0, "rerun"), "maybe"),
    "capsule as object": (("alarms", 0, "capsule"), {}),
    "unknown policy": (("alarms", 0, "policy"), "ignore"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_broken_report_is_refused(why):
    report = copy.deepcopy(REPORTS["loss_forward"])
    put(report, *BROKEN[why])
    assert not VALIDATOR.is_valid(report)


@pytest.mark.parametrize("key", ["schema", "outcome", "watched", "alarms", "advisories"])
def test_missing_key_is_refused(key):
    report = copy.deepcopy(REPORTS["clean"])
    del report[key]
    assert not VALIDATOR.is_valid(report)


def test_unwatched_says_why():
    report = copy.deepcopy(REPORTS["unwatched"])
    report["reason"] = ""
    assert not VALIDATOR.is_valid(report)


def test_clean_holds_no_alarm():
    report = copy.deepcopy(REPORTS["loss_forward"])
    report["outcome"] = "clean"
    assert not VALIDATOR.is_valid(report)
