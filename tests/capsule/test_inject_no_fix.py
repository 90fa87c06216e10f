"""`finitude replay --with`: a step that is finite for another reason than a fix is not called one."""

import json

import pytest

import helpers
from inject_support import FIXED, LOADER, Captured

STEP = "loss_of(x, y).backward()"


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    return Captured(tmp_path_factory.mktemp("loader"), LOADER.replace("WORKERS", "0"))


@pytest.mark.parametrize("zeroed", ["set_to_none=False", pytest.param("set_to_none=True", marks=pytest.mark.thorough)])
def test_a_step_without_its_backward_is_not_fixed(captured, zeroed):
    """Nothing of it is bad but the loss, which nobody asks for any more."""
    left_out = (STEP, "loss = loss_of(x, y)\n            if torch.isfinite(loss): loss.backward()")
    how = ("zero_grad()", f"zero_grad({zeroed})")
    result = captured.with_changes(left_out, how)
    assert result.code == 1 and result.out.startswith("not fixed: the same birth  aten::log"), result.text()
    assert "the program itself left the loss out" in result.out
    fixed = captured.with_changes(left_out, how, FIXED)
    assert fixed.code == 0 and fixed.out.startswith("fixed: loss "), fixed.text()


def test_without_backward_no_fix_verdict_is_given(captured):
    result = captured.with_changes((STEP, "loss_of(x, y)"))
    assert (
        result.code == 4
        and "undecided: the program reached the optimizer's step, but none of its parameters was given a gradient"
        in result.out
    ), result.text()


def test_bad_loss_next_to_good_one_is_reported(captured):
    result = captured.with_changes(
        (
            STEP,
            "loss = loss_of(x, y)\n            model(x).mean().backward()\n"
            "            if torch.isfinite(loss): loss.backward()",
        )
    )
    assert result.code == 1 and "the same birth  aten::log" in result.out and "left the loss out" in result.out, (
        result.text()
    )


@pytest.mark.thorough
def test_unrelated_discarded_bad_value_does_not_affect_fix(captured):
    looks = "if torch.isfinite(torch.sqrt(-model(x).abs().sum() - 1)): raise SystemExit\n            " + STEP
    result = captured.with_changes(FIXED, (STEP, looks))
    assert result.code == 0 and "left the loss out (aten::sqrt)" in result.out, result.text()


def test_parameters_that_were_given_no_gradient_are_named(captured):
    result = captured.with_changes(
        FIXED, (STEP, "loss_of(x, y)\n            model[3].bias.sum().backward()"), words=["--json"]
    )
    document = json.loads(result.out)
    assert result.code == 0 and any(
        "no gradient was given to 0.weight, 0.bias" in note for note in document["notes"]
    ), result.text()


# The optimizer is given gradients that no backward wrote.
BY_HAND = """
import torch
torch.manual_seed(2)
w = torch.nn.Parameter(torch.rand(6))
optimizer = torch.optim.SGD([w], lr=0.1)
for i in range(6):
    x = torch.rand(4, 6)
    x[0] = x[0] * (i != 3)
    norm = torch.sqrt((x * w).pow(2).sum(1))
    (w.grad,) = torch.autograd.grad(norm.sum(), [w])
    optimizer.step()
"""


@pytest.mark.thorough
def test_gradients_set_by_the_program_need_no_backward(tmp_path):
    captured = Captured(tmp_path, BY_HAND)
    (described,) = captured.about["start"]["optimizers"]
    assert (described["gradients"], described["backwards"]) == (["w"], 0)
    fixed = captured.with_changes((".sum(1))", ".sum(1) + 1e-6)"))
    assert fixed.code == 0 and fixed.out.startswith("fixed"), fixed.text()
    same = captured.with_changes()
    assert same.code == 1 and "the same birth" in same.out, same.text()


# Left out twice: the second bad step comes out finite in place of another one, and is reached only past the first.
BY_NUMBER = """
import torch
torch.manual_seed(4)
w = torch.nn.Parameter(torch.rand(4))
optimizer = torch.optim.Adam([w], lr=0.01)
for i in range(5):
    x = torch.rand(4) * (i not in (2, 4))
    optimizer.zero_grad()
    torch.log(x * w).mean().backward()
    optimizer.step()
"""


def test_a_step_behind_another_bad_one_is_reached(tmp_path):
    got = helpers.run(tmp_path, BY_NUMBER, "--on-alarm", "skip")
    _, alarm = got.alarms
    assert alarm["step"] == 4 and alarm["capsule"], got.text()
    same = helpers.finitude(tmp_path, "replay", alarm["capsule"], "--with", "train.py")
    assert same.code == 1 and same.out.startswith("not fixed: the same birth  aten::log"), same.text()
