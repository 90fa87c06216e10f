"""Values that the program itself writes between two operations of a step: over a gradient, a buffer, the loss."""

import pytest

from helpers import training

LOOP = """
model.register_buffer("scale", torch.ones(1))
for k, x in enumerate(batches):
    if k == 3: {before}
    loss = loss_of(x) * model.scale
    if k == 3: {at_loss}
    opt.zero_grad()
    loss.backward()
    if k == 3: {after}
    opt.step()
"""
INTO_GRADIENT = ("wrong-backward", "into the gradient of weight")
CASES = {
    "gradient, one element of .data": ("after", "model.weight.grad.data[0, 2] = INF", *INTO_GRADIENT),
    "gradient, all of .data": ("after", "model.weight.grad.data.fill_(NAN)", *INTO_GRADIENT),
    "gradient, by NumPy": ("after", "model.weight.grad.numpy()[1] = NAN", None, ""),
    "gradient, divided in .data": (
        "after",
        "model.weight.grad.data.div_(torch.zeros(()))",
        "division-by-zero",
        "the denominator holds 1 zero",
    ),
    "buffer": ("before", "model.scale.fill_(NAN)", "corrupted-state", "into scale"),
    "loss": ("at_loss", "loss.data.fill_(NAN)", "bad-data", "into the loss"),
}


@pytest.mark.parametrize("place, statement, cause, words", CASES.values(), ids=CASES)
def test_it_is_stopped_and_the_line_is_named(tmp_path, place, statement, cause, words):
    parts = {"before": "pass", "at_loss": "pass", "after": "pass", place: statement}
    got = training(tmp_path, LOOP.format(**parts), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (3, "clean"), got.text()
    if cause is not None:  # what NumPy writes no operator does
        assert alarm["cause"]["class"] == cause and words in alarm["cause"]["text"], got.text()
        assert statement in alarm["births"][0]["source"], got.text()
