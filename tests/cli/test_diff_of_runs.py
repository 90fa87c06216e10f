"""`finitude diff` of two runs without traces: series, hyper-parameters, packages and environment."""

import json

import pytest
import torch

import finitude
import helpers


def run_of(folder, rate=0.1, rate_later=None, scale=1.0):
    """The folder of a run of six steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with finitude.watch(model, optimizer, runs=str(folder), quiet=True):
        for step in range(6):
            if step == 4 and rate_later is not None:
                optimizer.param_groups[0]["lr"] = rate_later
            optimizer.zero_grad()
            (model(torch.randn(3, 4)) * (scale if step >= 3 else 1)).square().mean().backward()
            optimizer.step()
    (run,) = folder.glob("*/")
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = {"plain": {}, "again": {}, "rate": {"rate": 0.2}, "later": {"rate_later": 0.05}, "loss": {"scale": 2.0}}
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


def test_a_map_of_names_is_for_dumps(runs, tmp_path):
    names = tmp_path / "names.toml"
    names.write_text("")
    words = "diff", str(runs["plain"]), str(runs["rate"]), "--map", str(names)
    got = helpers.finitude(runs["plain"].parent, *words)
    assert got.code == 2 and "--map, --noise and --join are for dumps" in got.err, got.text()
