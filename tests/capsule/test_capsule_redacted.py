"""A capsule with --redact: its report is shown as far as it is there, and no number in it is a value of the program."""

import json
import pathlib
import subprocess

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude import _native
from finitude.report import capsule_alarm

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

# Numbers that nothing else is likely to come to; a division by a tensor of one element, filled and masked tensors, and
# few values.
SCRIPT = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Linear(12, 12))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.rand(8, 6)
scale, few = torch.tensor(0.7345127), torch.tensor([0.6191353, -0.8917263, 0.0])
mask = torch.where(torch.rand(8, 12) > 0.5, torch.full((8, 12), 1.3871265), torch.zeros(8, 12))
for i in range(4):
    optimizer.zero_grad()
    h = model(x) * scale * mask + few.sum() + torch.full((8, 12), 2.4418373) * few[0]
    if i == 2:
        h = h * 0.0
    loss = torch.log(h.abs()).div(3.7519291).mean()
    loss.backward()
    optimizer.step()
"""
VALUES = (0.7345127, 0.6191353, 0.8917263, 1.3871265, 2.4418373, 3.7519291)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redacted")
    result = helpers.run(folder, SCRIPT, "--redact")
    return folder, folder / result.the_alarm()["capsule"], result


def numbers(value):
    if isinstance(value, float):
        yield abs(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from numbers(inner)


def test_its_report_is_shown(made, tmp_path):
    _, capsule, _ = made
    shown = helpers.finitude(tmp_path, "report", str(capsule))
    assert shown.code == 0 and not shown.err, shown.text()
    words = " ".join(shown.out.split())
    for part in ("born in forward aten::log", "loss is", "96 zeros", "log-of-zero"):
        assert part in words, shown.out
    assert "train.py" not in words and "finitude replay" not in words and "finitude dump" in words, shown.out
    alone = subprocess.run(
        [PLAYER, "--report", capsule], capture_output=True, text=True, timeout=60, env={"PATH": "/nowhere"}
    )
    assert alone.returncode == 0 and "aten::log" in alone.stdout, alone.stderr
    as_json = helpers.finitude(tmp_path, "report", "--json", str(capsule))
    (alarm,) = json.loads(as_json.out)["alarms"]
    assert (
        alarm["capsule_redacted"] is True
        and alarm["births"][0]["file"] is None
        and alarm["births"][0]["op"] == "aten::log"
    )


def test_redacted_run_does_not_offer_a_replay(made):
    _, _, result = made
    words = "".join(result.err.split())
    assert "finitudereplay" not in words and "finitudedump" in words, result.text()


def test_no_number_in_it_is_a_value(made, tmp_path):
    _, capsule, _ = made
    dumped = helpers.finitude(tmp_path, "dump", str(capsule))
    assert dumped.code == 0, dumped.text()
    found = [
        *numbers([json.loads(line) for line in dumped.out.splitlines()]),
        *numbers(json.loads((capsule / "capsule.json").read_text())),
    ]
    assert len(found) > 100
    given_away = [v for v in VALUES if any(abs(n - v) < 1e-6 or abs(n - v * v) < 1e-6 for n in found)]
    assert not given_away
    ranges = [
        t
        for line in dumped.out.splitlines()
        for t in (lambda op: op["inputs"] + op["outputs"])(json.loads(line))
        if t["numel"]
    ]
    few = [t for t in ranges if 0 < t["numel"] - t["nan"] - t["inf"] - t["zero"] < 8]
    assert few and all(t["min"] is t["max"] is t["absmax"] is None and "sum_sq" not in t for t in few)
    assert any(t["min"] is not None and t["min"] < t["max"] for t in ranges if t["numel"] == 72)  # the weight


@pytest.mark.parametrize(
    ("numel", "zero", "low", "high", "kept"),
    [
        (100, 0, -1.0, 2.0, True),
        (1, 0, 0.5, 0.5, False),
        (7, 0, -1.0, 2.0, False),
        (100, 93, -1.0, 2.0, False),
        (100, 0, 0.5, 0.5, False),
        (100, 50, 0.0, 1.25, False),
        (100, 0, -1.25, 1.25, False),
    ],
)
def test_ranges_of_an_alarm(numel, zero, low, high, kept):
    kept_keys = capsule_alarm.without_sources(
        {"numel": numel, "nan": 0, "inf": 0, "zero": zero, "min": low, "max": high, "absmax": high}
    )
    assert ("min" in kept_keys, "max" in kept_keys, "absmax" in kept_keys) == (kept,) * 3


def test_redacted_alarm_omits_arguments_and_losses():
    alarm = {
        "births": [{"op": "aten::pow", "scalars": [{"arg": "exponent", "text": "2.5"}]}],
        "loss": 0.25,
        "cause": {"onsets": [{"quantity": "loss", "step": 3, "from": 0.5, "to": 8.0}], "class": "overflow"},
    }
    assert capsule_alarm.without_sources(alarm) == {
        "births": [{"op": "aten::pow"}],
        "loss": None,
        "cause": {"class": "overflow"},
    }


@pytest.mark.parametrize(
    ("said", "redacted"),
    [
        (
            "v of layers.0.1.weight at [3, 2] is -0.25: corrupt",
            "v of layers.0.1.weight at [3, 2] is (redacted): corrupt",
        ),
        ("values from -0.531 to 8.04e-3, grown x60", "values from (redacted) to (redacted), grown x60"),
        ("by 4.97e+32 in 3 steps (torch 2.13.0)", "by (redacted) in 3 steps (torch 2.13.0)"),
        ("it was 1e5.", "it was (redacted)."),
        ("float16 at 0.weight, train.py:16, 1.", "float16 at 0.weight, train.py:16, 1."),
    ],
)
def test_no_sentence_holds_a_value(said, redacted):  # src/capture/redact_test.cpp has the same
    assert capsule_alarm.without_sources({"cause": {"text": said, "experiments": [{"name": said}]}}) == {
        "cause": {"text": redacted, "experiments": [{"name": redacted}]}
    }


def test_redacted_run_report_keeps_statistics_without_values(made):
    """report.json, its page and --report: places stay, the text of lines, arguments and values do not."""
    folder, capsule, result = made
    report, page = result.report, (capsule.parent / "report.html").read_text()
    inside = json.loads((capsule.parent / "report.json").read_text())
    for one in (report, inside):
        (alarm,) = one["alarms"]
        birth = alarm["births"][0]
        assert (birth["op"], birth["line"] > 0, birth["file"].endswith("train.py")) == ("aten::log", True, True)
        assert (
            birth["inputs"][0]["zero"] == 96 and one["command"] == [] and alarm["loss"] == "-Infinity"
        )  # no value of the data
        assert "exponents" not in birth["inputs"][0]
        assert not {"source", "around", "scalars", "samples"} & birth.keys() and not {"history", "saved"} & alarm.keys()
        given_away = [v for v in VALUES if any(abs(n - v) < 1e-6 or abs(n - v * v) < 1e-6 for n in numbers(one))]
        assert not given_away
    assert not [v for v in VALUES if str(v)[:6] in page] and "torch.log" not in page


# A growth, which is warned of, a bad checkpoint and a bad step: each with numbers of its own.
EVENTS = """
import torch, finitude
heard = open("heard.txt", "w")
finitude.watch(on_event=lambda event: print(event, file=heard, flush=True))
torch.manual_seed(1)
model = torch.nn.Linear(6, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(48):
    optimizer.zero_grad()
    h = model(torch.full((8, 6), 0.7345127)) * 1.3871265 + 2.4418373  # local_secret
    h = h * (0.0 if i == 46 else 1.15 ** max(0, i - 20))
    loss = torch.log(h.abs()).mean() if i == 46 else (h * h).mean()
    loss.backward()
    optimizer.step()
    if i == 47:
        torch.save({"w": torch.full((3,), float("nan"))}, "bad.pt")
"""


def test_events_of_a_redacted_run_are_redacted_as_its_report(tmp_path):
    """events.jsonl, and what listeners get: no value, no line of the program."""
    result = helpers.run(tmp_path, EVENTS, "--redact", "--on-alarm", "skip")
    (file,) = tmp_path.glob("finitude-runs/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [one["kind"] for one in events]
    assert {"start", "warning", "alarm", "advisory", "end"} <= set(kinds), (kinds, result.text())
    for said in (file.read_text(), (tmp_path / "heard.txt").read_text()):
        assert "alarm" in said and not [v for v in VALUES if str(v)[:6] in said]
        assert not [word for word in ("local_secret", "torch.log", "def ", "'history'", '"history"') if word in said]
    (alarm,) = [one["alarm"] for one in events if one.get("explained")]
    assert alarm["births"] == result.the_alarm()["births"]
    warnings = [one for one in events if one["kind"] == "warning"]
    assert warnings and not any(one["evidence"] for one in warnings + result.report["warnings"])
