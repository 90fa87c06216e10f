"""`finitude diff` of two runs without traces: series, hyper-parameters, packages and environment."""

import json
import shutil
import sqlite3

import pytest
import torch

import finitude
import helpers


def run_of(folder, rate=0.1, rate_later=None, scale=1.0, seed=0, steps=6, bad=None):
    """The folder of a run. bad: the step that is skipped."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with finitude.watch(model, optimizer, runs=str(folder), quiet=True, on_alarm="skip"):
        for step in range(steps):
            if step == 4 and rate_later is not None:
                optimizer.param_groups[0]["lr"] = rate_later
            optimizer.zero_grad()
            rows = torch.randn(3, 4) * (float("nan") if step == bad else 1)
            (model(rows) * (scale if step >= 3 else 1)).square().mean().backward()
            optimizer.step()
    (run,) = folder.glob("*/")
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = {"plain": {}, "again": {}, "rate": {"rate": 0.2}, "later": {"rate_later": 0.05}, "loss": {"scale": 2.0}}
    made.update({"short": {"steps": 4}, "bad": {"bad": 2}, "seed": {"seed": 1}, "seed_bad": {"seed": 1, "bad": 4}})
    return {name: run_of(root / name, **options) for name, options in made.items()}


def diff(runs, a, b):
    got = helpers.finitude(runs["plain"].parent, "diff", str(runs[a]), str(runs[b]), "--json")
    return got.code, json.loads(got.out)


def test_the_same_training_has_no_difference(runs):
    code, document = diff(runs, "plain", "again")
    assert (code, document["verdict"], document["series"]) == (0, "same", []) and document["counts"]["series"] >= 4


def test_hyper_parameters_and_packages_are_named(runs):
    file = runs["rate"] / "run.json"
    started = json.loads(file.read_text())
    started["packages"]["numpy"] = "0.1"
    started["environment"]["OMP_NUM_THREADS"] = "7"
    file.write_text(json.dumps(started))
    for name, size in (("plain", 4), ("rate", 8)):  # as where the program has a DataLoader
        file = runs[name] / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "data": [{"class": "Rows", "batch_size": size}]}))
    code, document = diff(runs, "plain", "rate")
    about = {(one["group"], one["key"]): (one["a"], one["b"]) for one in document["about"]}
    assert code == 1 and document["step"] == 0
    assert about["update", "optimizers[0].groups[0].lr"] == ("0.1", "0.2")
    assert about["update", "data_sets[0].batch_size"] == ("4", "8")
    assert about["packages", "numpy"][1] == "0.1" and about["environment", "OMP_NUM_THREADS"][1] == "7"
    text = helpers.finitude(runs["plain"].parent, "diff", str(runs["plain"]), str(runs["rate"])).out
    assert text.index("package numpy") < text.index("they diverge at step 0: ") < text.index("learning_rate   step 0")


def test_the_first_step_that_differs_is_named(runs):
    code, document = diff(runs, "plain", "loss")
    first = {one["quantity"]: one for one in document["series"] if one["parameter"] is None}
    assert code == 1 and document["step"] == first["loss"]["first_step"] == 3
    assert "learning_rate" not in first
    code, document = diff(runs, "plain", "later")
    assert {"learning_rate"} <= {one["quantity"] for one in document["series"]} and document["step"] == 4


def text_of(runs, a, b):
    return " ".join(helpers.finitude(runs["plain"].parent, "diff", str(runs[a]), str(runs[b])).out.split())


def test_a_step_that_is_skipped_is_the_divergence(runs):
    code, document = diff(runs, "plain", "bad")
    assert code == 1 and document["step"] == 2 and document["fates"][0]["step"] == 2
    assert (document["fates"][0]["a"], document["fates"][0]["b"]) == ("", "not applied: loss is NaN")
    assert "they diverge at step 2: loss, in B not applied: loss is NaN" in text_of(runs, "plain", "bad")
    assert "in A not applied: loss is NaN" in text_of(runs, "bad", "plain")


def test_an_early_end_is_a_divergence(runs):
    code, document = diff(runs, "plain", "short")
    assert (code, document["step"], document["series"]) == (1, 4, [])
    assert document["ends"] == {"a": "clean", "b": "clean", "optimizers": [{"optimizer": "SGD", "a": 5, "b": 3}]}
    assert "they diverge at step 4: A ends after step 5 (clean), B after step 3" in text_of(runs, "plain", "short")


def test_other_seeds_are_a_start_and_no_divergence_of_their_own(runs):
    _code, document = diff(runs, "plain", "seed")
    assert document["from_start"] and document["step"] == 0 and not document["fates"]
    assert {"group": "seeds", "key": "torch", "a": "0", "b": "1"} in document["about"]
    text = text_of(runs, "plain", "seed")
    assert "differ from the first step on, with other seeds: loss" in text and "beyond that nothing" in text
    assert "no loss above zero is apart by more than a factor of 2 for long" in text
    assert diff(runs, "plain", "seed_bad")[1]["step"] == 4
    assert "beyond that step 4: in B not applied: loss is NaN" in text_of(runs, "plain", "seed_bad")


def test_switches_of_torch_are_named(runs):
    file = runs["again"] / "run.json"
    before = file.read_text()
    started = json.loads(before)
    started["flags"]["deterministic"] = not started["flags"]["deterministic"]
    file.write_text(json.dumps({**started, "on_alarm": "raise"}))
    _code, document = diff(runs, "plain", "again")
    file.write_text(before)
    named = {(one["group"], one["key"]) for one in document["about"]}
    assert {("flags", "deterministic"), ("program", "on_alarm")} <= named


def test_a_map_of_names_is_for_dumps(runs, tmp_path):
    names = tmp_path / "names.toml"
    names.write_text("")
    words = "diff", str(runs["plain"]), str(runs["rate"]), "--map", str(names)
    got = helpers.finitude(runs["plain"].parent, *words)
    assert got.code == 2 and "--map, --noise and --join are for dumps" in got.err, got.text()


def copied(runs, name, folder):
    return shutil.copytree(runs[name], folder)


def test_series_of_many_parameters_do_not_hide_those_of_the_optimizer(runs, tmp_path):
    words = []
    for value, name in enumerate(("plain", "later")):
        words.append(str(copied(runs, name, tmp_path / name)))
        with sqlite3.connect(tmp_path / name / "store.sqlite") as store:
            for number in range(1000, 1300):
                store.execute(
                    "INSERT INTO series (id, quantity, optimizer, parameter) VALUES (?, 'gradient_norm', 'SGD', ?)",
                    (number, f"p{number}"),
                )
                store.execute("INSERT INTO point VALUES (?, 0, 0, 0, ?, ?, ?, ?)", (number, *[1 + value / 1e6] * 4))
    got = helpers.finitude(tmp_path, "diff", *words, "--json")
    document = json.loads(got.out)
    assert (got.code, document["step"]) == (1, 4) and document["counts"]["differing"] > 300
    assert {"learning_rate"} <= {one["quantity"] for one in document["series"]}
    assert "they diverge at step 4: learning_rate" in helpers.finitude(tmp_path, "diff", *words).out


def test_alarms_that_are_explained_at_once_count_and_those_that_are_allowed_do_not(runs, tmp_path):
    folder = copied(runs, "again", tmp_path / "b")
    events = (folder / "events.jsonl").read_text().splitlines()
    begun, at_once = (
        json.dumps({"kind": "alarm", "step": step, "optimizer": "SGD", "text": "bad", "explained": explained})
        for step, explained in ((1, False), (3, True))
    )
    for lines, wanted in (([*events[:-1], begun, at_once, events[-1]], [3]), ([*events[:-1], begun], [1])):
        (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
        got = helpers.finitude(tmp_path, "diff", str(runs["plain"]), str(folder), "--json")
        document = json.loads(got.out)
        assert [one["step"] for one in document["fates"]] == wanted and got.code == 1, lines
        assert (document["step"], document["fates"][0]["b"]) == (wanted[0], "bad")


def test_an_end_without_events_is_that_of_the_report(runs, tmp_path):
    folder = copied(runs, "short", tmp_path / "b")
    (folder / "events.jsonl").unlink()
    words = "diff", str(runs["plain"]), str(folder)
    assert "B after step 3 (clean)" in " ".join(helpers.finitude(tmp_path, *words).out.split())
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, "under_way": {"pid": 1}}))  # written during the run
    assert "B after step 3 (its end is not known)" in " ".join(helpers.finitude(tmp_path, *words).out.split())
