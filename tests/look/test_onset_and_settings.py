"""What the page gets for its comparisons: the quantity that grew before an alarm, and the settings of a run."""

import json

import pytest

import made_stores
from finitude.live import document, onset, settings
from finitude.store import reader

STARTED = {
    "schema": 1,
    "torch": "2.13.0",
    "python": "3.11.2",
    "on_alarm": "stop",
    "optimizers": [{"class": "AdamW", "groups": [{"lr": 0.1, "betas": [0.9, 0.99]}, {"lr": 0.2, "foreach": True}]}],
    "packages": {"numpy": "2.1.0"},
    "environment": {"OMP_NUM_THREADS": "2"},
    "git": {"commit": "abc", "branch": "main"},
}


def strips_of(folder, **event):
    alarm = {"kind": "alarm", "step": 900, "since": 700, "name": "layers.1.weight", "optimizer": "AdamW", **event}
    with reader.Store(str(folder / "store.sqlite")) as store:
        return onset.strips(store, store.series(), [alarm])


@pytest.fixture
def run(tmp_path):
    return made_stores.run(tmp_path / "run", steps=1000, parameters=4)


def test_a_strip_begins_before_the_onset(run):
    (strip,) = strips_of(run)
    assert (strip["quantity"], strip["name"], strip["optimizer"]) == ("weight_absmax", "layers.1.weight", "AdamW")
    assert strip["at"][0] == 700 - onset.BEFORE == strip["from"] and strip["at"][-1] == 900 == strip["step"]
    assert len(strip["at"]) == len(strip["values"]) and strip["values"][-1] > strip["values"][0]


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("loss", "loss"), ("gradient", "gradient_norm"), ("learning-rate", "learning_rate")],
)
def test_a_strip_of_the_whole_optimizer(run, name, quantity):
    (strip,) = strips_of(run, name=name)
    assert (strip["quantity"], strip["name"]) == (quantity, "")


@pytest.mark.parametrize("event", [{"name": "nothing"}, {"since": None}, {"step": None}, {"step": 3}], ids=str)
def test_what_is_not_known_has_no_strip(run, event):
    assert strips_of(run, **event) == []


def test_no_more_strips_than_are_shown(run):
    with reader.Store(str(run / "store.sqlite")) as store:
        alarms = [{"kind": "alarm", "step": 500 + i, "since": 400, "name": "loss"} for i in range(20)]
        found = onset.strips(store, store.series(), alarms)
    assert [one["step"] for one in found] == [512 + i for i in range(onset.MOST_STRIPS)]


def test_settings_are_one_flat_table(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(STARTED))
    assert settings.of_run(str(tmp_path)) == {
        "AdamW lr": "0.1",
        "AdamW group 1 lr": "0.2",
        "AdamW group 1 foreach": "True",
        "python": "3.11.2",
        "torch": "2.13.0",
        "on_alarm": "stop",
        "git commit": "abc",
        "variable OMP_NUM_THREADS": "2",
        "package numpy": "2.1.0",
    }


@pytest.mark.parametrize("text", ["", "[]", '{"optimizers": 7, "packages": [1], "git": 3}', '{"optimizers": [1, {}]}'])
def test_damaged_settings_are_none(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert settings.of_run(str(tmp_path)) == {}


def test_settings_are_bounded_and_printable(tmp_path):
    packages = {f"p{i}\x1b[31m": "v" * 500 for i in range(5000)}
    (tmp_path / "run.json").write_text(json.dumps({"packages": packages}))
    found = settings.of_run(str(tmp_path))
    assert len(found) == settings.MOST_ROWS
    assert all(name.isprintable() and len(value) <= settings.MOST_TEXT for name, value in found.items())


def test_a_page_gets_settings_once(run):
    (run / "run.json").write_text(json.dumps(STARTED))
    follower = document.Follower(str(run))
    first = follower.changes()
    assert first["settings"]["AdamW lr"] == "0.1" and first["processes"][0]["strips"]
    assert "settings" not in follower.changes()
    (run / "run.json").write_text(json.dumps({**STARTED, "torch": "2.14.0"}))
    assert follower.changes()["settings"]["torch"] == "2.14.0"
    assert "settings" not in document.still(str(run))["runs"][0]
