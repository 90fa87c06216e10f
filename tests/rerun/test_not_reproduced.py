"""Bad values that do not come again: which tensor held them is reported, and where its bits are nobody's NaN, that nobody
had written there."""

import pytest
import torch

import helpers
from finitude.report import not_reproduced

PROGRAM = """
import os, numpy, torch
torch.manual_seed(0)


def chance():
    \"\"\"True once, whoever asks again.\"\"\"
    if os.path.exists({mark!r}):
        return False
    os.close(os.open({mark!r}, os.O_CREAT))
    return True


def make(i):
    good = torch.randn(4, 3)
    return {bad} if i == 3 and chance() else good


net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for i in range(6):
    x = make(i)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
STRANGE = "torch.from_numpy(numpy.full((4, 3), -2, numpy.int32).view(numpy.float32))"


def ran(tmp_path, text, **kv):
    inside = tmp_path / "run"
    inside.mkdir()
    return helpers.run(inside, text.format(mark=str(tmp_path / "asked"), **kv))


def test_bits_unknown_to_arithmetic_are_unwritten_memory(tmp_path):
    got = ran(tmp_path, PROGRAM, bad=STRANGE)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["cause"]["class"], alarm["cause"]["confidence"]) == (
        3,
        "transient",
        "uninitialised-memory",
        "likely",
    ), got.text()
    assert (alarm["births"][0]["phase"], alarm["births"][0]["name"], alarm["births"][0]["source"]) == (
        "memory",
        "x",
        "x = make(i)",
    ), got.text()
    assert "x held 12 NaN with bits that no arithmetic makes (fffffffe)" in alarm["cause"]["text"], alarm["cause"]


def test_usual_nan_reports_only_the_tensor(tmp_path):
    got = ran(tmp_path, PROGRAM, bad="good / 0 * 0")
    alarm = got.the_alarm()
    assert (alarm["rerun"], alarm["cause"]["class"], alarm["births"]) == ("transient", "unknown", []), got.text()
    assert alarm["cause"]["text"].endswith("; the first time x held 12 NaN"), alarm["cause"]


@pytest.mark.parametrize(
    "ask, found, cause", [("chance()", "transient", "uninitialised-memory"), ("True", "persistent", "corrupted-state")]
)
def test_a_parameter_that_nobody_filled(tmp_path, ask, found, cause):
    text = PROGRAM.replace(
        "optimizer = ", "if " + ask + ":\n    net.weight.data.copy_({bad}[:1])\noptimizer = "
    ).replace("i == 3 and chance()", "False")
    got = ran(tmp_path, text, bad=STRANGE)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["cause"]["class"]) == (0, found, cause), got.text()
    assert "(fffffffe)" in alarm["cause"]["text"] and "nobody had written" in alarm["cause"]["text"], alarm["cause"]


@pytest.mark.parametrize(
    "kind", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_nan_from_narrower_format_counts_as_arithmetic(kind, wide):
    narrow, wide = getattr(torch, kind), getattr(torch, wide)
    for count in (1, 5, 80):  # one by one, and by vector code
        nan = torch.full((count,), -1.0).sqrt().to(narrow)
        made = (
            [nan]
            if "float8" in kind
            else [nan, nan + nan, nan * 0, nan[:, None] @ nan[None], nan.exp(), nan.softmax(0)]
        )
        assert [not_reproduced.strange_bits(v.to(wide)) for v in made] == [""] * len(made)
    assert not_reproduced.strange_bits(torch.tensor([0x7FABCDEF]).to(torch.int32).view(torch.float32).to(wide)) != ""


OTHER_PLACE = """
import os, torch
torch.manual_seed(0)
first = not os.path.exists({mark!r})
open({mark!r}, "a").close()
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(4, 3)
loss = net(x).square().mean()
if first:
    loss.register_hook(lambda g: g * float("nan"))
else:
    loss = loss * float("nan")
loss.backward()
optimizer.step()
"""


def test_a_failure_at_another_value_is_not_called_finite(tmp_path):
    """The first run had a bad gradient, the second a bad loss: its birth is not that of the alarm."""
    got = ran(tmp_path, OTHER_PLACE)
    alarm = got.the_alarm()
    assert (alarm["rerun"], alarm["births"], alarm["capsule"]) == ("order-dependent", [], None), got.text()
    assert "it failed again, but at the loss" in alarm["rerun_text"] and "finite" not in alarm["cause"]["text"]


def test_a_single_number_is_no_unwritten_memory():
    """It was computed: NaN keeps its bits through arithmetic."""
    total = torch.full((), -2, dtype=torch.int32).view(torch.float32)
    noted = [{**not_reproduced._held("norm", total), "file": "train.py", "line": 3}]
    alarm = {
        "rerun": "transient",
        "births": [],
        "cause": {"class": "unknown", "text": "", "confidence": "possible", "experiments": []},
    }
    not_reproduced.add_to(alarm, noted)
    assert (alarm["cause"]["class"], alarm["births"], alarm["fix"]["line"]) == ("uninitialised-memory", [], 0)
    assert "norm held 1 NaN" in alarm["cause"]["text"] and "computed from memory" in alarm["cause"]["text"]
