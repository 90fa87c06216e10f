"""Losses that the script looks at and drops before backward, so many in a row that nothing is learned."""

import pytest

from helpers import training

ROW = """
import math
for i in range({steps}):
    opt.zero_grad()
    {body}
    loss.backward()
    opt.step()
print("ended", finite())
"""
LOOKS = {
    "isfinite": "loss = loss_of(batches[i % 6]) * (NAN if i > 2 else 1)\n    if not torch.isfinite(loss): continue",
    "two looks": "loss = loss_of(batches[i % 6]) * (INF if i > 2 else 1)\n    value = loss.detach().item()\n"
    "    if loss.item() > 1e9 or math.isinf(value): continue",
    "helper": "loss = loss_of(batches[i % 6]) * (NAN if i > 2 else 1)\n"
    "    try:\n        assert not loss.isnan()\n    except AssertionError:\n        continue",
}


@pytest.mark.parametrize("body", LOOKS.values(), ids=LOOKS)
def test_a_row_of_dropped_losses_is_an_alarm_while_it_runs(tmp_path, body):
    got = training(tmp_path, ROW.format(steps=10**7, body=body), "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["weights"], alarm["action"]) == (1, 3, "clean", "stopped"), got.text()
    assert "dropped 5 steps in a row" in alarm["text"] and got.watched["handled_by_script"] == 5, got.text()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True), got.text()
    assert alarm["births"][0]["op"] == "aten::mul", got.text()


def test_a_row_that_begins_with_the_first_step(tmp_path):
    """How many values the script looks at in a step is not known then: many are waited for."""
    body = LOOKS["isfinite"].replace("i > 2", "True")
    got = training(tmp_path, ROW.format(steps=10**7, body=body), "--max-skips", "5", "--capsules", "0")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], got.watched["handled_by_script"]) == (1, 0, 500), got.text()
    assert "dropped 500 steps in a row" in alarm["text"], alarm["text"]


def test_a_row_of_dropped_losses_continues_under_warn(tmp_path):
    got = training(tmp_path, ROW.format(steps=40, body=LOOKS["isfinite"]), "--on-alarm", "warn", "--max-skips", "5")
    assert (got.code, len(got.alarms), got.watched["handled_by_script"]) == (0, 1, 37), got.text()


# Of each sample, or of each micro-batch, the script drops what is not finite, and steps with the others.
PARTS = """
for i in range(6):
    opt.zero_grad()
    losses = [loss_of(x) * (NAN if i > 1 and 8 <= k < 40 else 1) for k in range(48) for x in [batches[i]]]
    kept = [loss for loss in losses if torch.isfinite(loss)]
    {backward}
    opt.step()
print("ended", finite())
"""


@pytest.mark.parametrize(
    "backward", ["sum(kept).backward()", "[loss.backward() for loss in kept]"], ids=["sum", "each"]
)
def test_parts_of_a_loss_that_are_dropped_are_no_row_of_steps(tmp_path, backward):
    got = training(tmp_path, PARTS.format(backward=backward))
    got.assert_no_alarm()
    assert (got.code, got.out, got.watched["steps"]) == (0, "ended True\n", 6), got.text()
