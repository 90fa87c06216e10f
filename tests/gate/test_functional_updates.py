"""Training without an optimizer that makes new leaves of its gradients: nothing is written in place."""

import textwrap

import pytest

import helpers

LOOP = """
import torch
torch.manual_seed(0)
batches = [torch.rand(5, 4) for _ in range(STEPS)]
w, b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
def loss_of(x, i):
    size = x.sum(1, keepdim=True)
    if i == BAD:
        size = size * 0
    return ((x @ w + b) / size).pow(2).mean()
for i, x in enumerate(batches):
    loss = loss_of(x, i)
    gradients = torch.autograd.grad(loss, [w, b])
    GUARD
    w, b = ((p - 0.01 * g).detach().requires_grad_() for p, g in zip((w, b), gradients))
print(w.isfinite().all().item())
"""


def run(folder, *options, bad=4, steps=8, guard="pass", loop=LOOP):
    text = textwrap.dedent(loop).replace("BAD", str(bad)).replace("GUARD", guard).replace("STEPS", str(steps))
    return helpers.run(folder, text, *options)


@pytest.mark.parametrize("bad, steps", [(4, 8), (0, 3), (20, 24)])
def test_bad_loss_in_new_parameters_is_an_alarm(tmp_path, bad, steps):
    got = run(tmp_path, bad=bad, steps=steps)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"], alarm["rerun_by"]) == (
        bad,
        "loss",
        "damaged",
        "restart",
    ), got.text()
    assert (alarm["births"][0]["op"], alarm["cause"]["class"], alarm["rerun_verified"]) == (
        "aten::div",
        "division-by-zero",
        True,
    ), got.text()
    assert got.code == 1 and not got.out and not got.advisories(), got.text()  # stopped at the next gradients


def test_backward_and_new_leaves_are_the_same(tmp_path):
    by_backward = LOOP.replace(
        "gradients = torch.autograd.grad(loss, [w, b])", "loss.backward(); gradients = w.grad, b.grad"
    )
    assert run(tmp_path, loop=by_backward).the_alarm()["step"] == 4


def test_warn_reports_once_and_continues(tmp_path):
    got = run(tmp_path, "--on-alarm", "warn")
    assert (got.code, got.out) == (0, "False\n") and got.the_alarm()["step"] == 4, got.text()
    assert not got.advisories() and got.watched["handled_by_script"] == 0, got.text()


def test_a_healthy_one_is_silent_and_watched(tmp_path):
    got = run(tmp_path, bad=-1)
    got.assert_silent()
    assert got.watched["steps"] == 8, got.text()


@pytest.mark.parametrize(
    "guard",
    ["if not loss.isfinite(): continue", "gradients = [g.nan_to_num(0, 0, 0) for g in gradients]"],
    ids=["left out", "put right"],
)
def test_bad_step_dropped_by_program_is_an_advisory(tmp_path, guard):
    got = run(tmp_path, guard=guard)
    got.assert_no_alarm()
    assert got.out == "True\n" and [a["step"] for a in got.advisories("handled-by-script")] == [4], got.text()
    assert got.advisories()[0]["text"] == "a loss that was not finite was never applied"


def test_last_step_is_not_known_to_be_applied(tmp_path):
    got = run(tmp_path, bad=7)
    got.assert_no_alarm()
    assert got.out == "False\n" and [a["step"] for a in got.advisories()] == [7], got.text()
    assert "never" not in got.advisories()[0]["text"] and "not seen to be applied" in got.advisories()[0]["text"]


LAST = """
import torch
torch.manual_seed(0)
w = torch.ones(4, requires_grad=True)
def size(w, x):
    return (w * x).pow(2).sum().sqrt()
for i in range(8):
    x = torch.rand(4) * (i < 7)  # the last loss is 0, where sqrt has no derivative
    UPDATE
"""
UPDATES = {
    "in place": "g, = torch.autograd.grad(size(w, x), [w])\n    with torch.no_grad(): w -= 0.1 * g",
    "torch.func": "w = w.detach() - 0.1 * torch.func.grad(size)(w.detach(), x)",
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_parameters_left_bad_at_the_end_are_named(tmp_path, update):
    got = helpers.run(tmp_path, LAST.replace("UPDATE", update))
    got.assert_no_alarm()
    assert "as the program ended, w is not finite (4 NaN of 4)" in got.err and "all finite" not in got.err, got.text()


def test_two_models_in_turn(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import torch
        torch.manual_seed(0)
        models = [torch.randn(4, 2, requires_grad=True), torch.randn(3, 1, requires_grad=True)]
        for i in range(8):
            w = models[i % 2]
            loss = (torch.rand(5, len(w)) @ w).pow(2).mean()
            if i == 4:
                loss = loss * 0 / 0
            g, = torch.autograd.grad(loss, [w])
            models[i % 2] = (w - 0.1 * g).detach().requires_grad_()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["births"][0]["op"]) == (4, "aten::div"), got.text()


def test_derivatives_of_nonfinite_rows_are_not_training(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import torch
        rows = torch.randn(6, 3)
        rows[2:] = float("nan")
        for row in rows:
            row = row.clone().requires_grad_()
            torch.autograd.grad((row * row).sum(), [row])
        """,
    )
    got.assert_no_alarm()
