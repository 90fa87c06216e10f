"""What the traced run saw of each operation lies in the capsule, also of one without values, and is compared where
nothing can be played."""

import json
import pathlib
import re

import pytest

import helpers

DATA = pathlib.Path(__file__).parents[1] / "data"
SCRIPT = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.rand(6, 8)
for i in range(4):
    optimizer.zero_grad()
    p = torch.softmax(model(x), -1)
    if i == 2:
        p = torch.where(p > 0.25, p, torch.zeros(()))
    loss = -(torch.log(p) * SCALE).sum()
    loss.backward()
    optimizer.step()
"""


def dumped(folder, path):
    result = helpers.finitude(folder, "dump", str(path))
    assert result.code == 0, result.text()
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Capsules of one program: with values, without, and of the same program with another number in it, without."""
    found = {}
    for name, scale, words in (
        ("whole", 1.0, ()),
        ("redacted", 1.0, ("--redact",)),
        ("other", 2.0, ("--redact",)),
        ("none", 1.0, ("--capsule-max", "0")),
    ):
        folder = tmp_path_factory.mktemp(name)
        alarm = helpers.run(folder, SCRIPT.replace("SCALE", str(scale)), *words).the_alarm()
        found[name] = folder / alarm["capsule"] if alarm["capsule"] else None
    assert found.pop("none") is None
    return found


def test_each_operation_with_its_numbers_and_its_line(made, tmp_path):
    ops = dumped(tmp_path, made["whole"])
    (log,) = [op for op in ops if op["op"] == "aten::log"]
    assert log["line"] == 11 and log["file"].endswith("train.py") and log["phase"] == "forward"
    (given,), (out,) = log["inputs"], log["outputs"]
    assert (
        given["zero"] == out["neg_inf"] > 0
        and given["nan"] == 0
        and given["min"] == 0
        and given["numel"] == 24
        and given["dtype"] == "float32"
    )
    assert out["max"] < 0 and out["shape"] == [6, 4]
    assert {op["phase"] for op in ops} >= {"forward", "backward"}
    weights = {t.get("text") for op in ops for t in op["inputs"]}
    assert {"0.weight", "2.bias"} <= weights
    # The same numbers as the report of a run at --level trace has of its steps.
    traced = helpers.run(tmp_path, SCRIPT.replace("SCALE", "1.0"), "--level", "trace")
    of_report = [op for op in traced.report["trace"]["ops"] if op["op"] == "aten::log"]
    assert [{k: v for k, v in t.items() if k not in ("storage", "begin", "end")} for t in of_report[-1]["outputs"]] == [
        {k: v for k, v in out.items() if k not in ("storage", "begin", "end")}
    ]


def test_the_births_of_the_report_are_among_them(made, tmp_path):
    birth = json.loads((made["whole"] / "capsule.json").read_text())["alarm"]["births"][0]
    (op,) = [op for op in dumped(tmp_path, made["whole"]) if op["op"] == birth["op"] and op["line"] == birth["line"]]
    for key in ("nan", "inf", "min", "max", "shape"):
        assert op["outputs"][0][key] == birth["outputs"][0][key]


def test_redacted_capsule_keeps_statistics_without_places_and_arguments(made, tmp_path):
    content = (made["redacted"] / "statistics.bin").read_bytes()
    assert content.startswith(b"FitStat\n") and b"train.py" not in content
    redacted, whole = dumped(tmp_path, made["redacted"]), dumped(tmp_path, made["whole"])
    assert [op["op"] for op in redacted] == [op["op"] for op in whole]
    computing = (
        "aten::addmm",
        "aten::relu",
        "aten::_softmax",
        "aten::log",
        "aten::sum",
        "aten::mm",
        "aten::div",
    )  # others may be of memory that nobody wrote
    assert {op["op"] for op in whole} >= set(computing)
    shown = [
        (a, b)
        for r, w in zip(redacted, whole)
        if r["op"] in computing
        for a, b in zip(r["outputs"], w["outputs"], strict=True)
    ]
    assert all(a == b for a, b in shown if a["min"] is not None) and sum(a["min"] is not None for a, _ in shown) > 5
    counts = ("numel", "nan", "inf", "zero", "shape", "dtype")
    assert all([a[k] for k in counts] == [b[k] for k in counts] for a, b in shown)
    assert not any(op["file"] or op["line"] or "scalars" in op for op in redacted)
    assert any("scalars" in op for op in whole)


@pytest.mark.parametrize("one", ["whole", "redacted"])
def test_capsules_without_values_are_compared_by_them(made, tmp_path, one):
    same = helpers.finitude(tmp_path, "diff", "--json", str(made[one]), str(made["redacted"]))
    document = json.loads(same.out)
    assert same.code == 0 and document["by_statistics"] and document["arguments"] == [], same.text()
    assert (
        document["alignment"]["pairs"] > 15 and document["alignment"]["only_a"] == document["alignment"]["only_b"] == 0
    )
    parted = helpers.finitude(tmp_path, "diff", "--json", str(made[one]), str(made["other"]))
    found = json.loads(parted.out)["divergence"]
    assert parted.code == 1 and found["kind"] in ("input", "kernel", "operators"), parted.text()


def test_values_are_compared_where_there_are_values(made, tmp_path):
    document = json.loads(helpers.finitude(tmp_path, "diff", "--json", str(made["whole"]), str(made["whole"])).out)
    assert document["by_statistics"] is False and document["verdict"] == "same"


def test_packed_too(made, tmp_path):
    packed = tmp_path / "a.zip"
    assert helpers.finitude(tmp_path, "pack", str(made["redacted"]), str(packed)).code == 0
    assert dumped(tmp_path, packed) == dumped(tmp_path, made["redacted"])


def test_replay_of_redacted_capsule_points_to_dump(made, tmp_path):
    result = helpers.finitude(tmp_path, "replay", str(made["redacted"]))
    assert result.code == 4 and "finitude dump" in result.err, result.text()


@pytest.mark.parametrize("level", [("--level", "tape"), ("--tape-every", "1"), ("--on-alarm", "skip")])
def test_whichever_way_the_step_was_explained(tmp_path, level):
    result = helpers.run(tmp_path, SCRIPT.replace("SCALE", "1.0"), *level)
    folder = tmp_path / result.alarms[0]["capsule"]
    (log,) = [op for op in dumped(tmp_path, folder) if op["op"] == "aten::log"]
    assert log["outputs"][0]["neg_inf"] > 0 and log["line"] == 11


def test_what_version_1_wrote_is_still_read(tmp_path):
    """Formats are a promise. The capsule was written by the first version that had these statistics."""
    folder = DATA / "capsules" / "schema_1_statistics"
    ops = dumped(tmp_path, folder)
    (log,) = [op for op in ops if op["op"] == "aten::log"]
    assert log["line"] == 12 and log["outputs"][0]["neg_inf"] == 24 and re.search(r"[/\\]train\.py$", log["file"])
    assert len(ops) == 110 and sum("scalars" in op for op in ops) == 66
