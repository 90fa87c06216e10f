"""Gradients of a finite loss that are not finite, in programs that have no optimizer: nobody reads them before the
program writes its parameters. The loss that follows shows them, and the second run where they were born."""

import pytest

from helpers import run

LOOP = """
import torch
from torch.func import grad
torch.manual_seed(0)
w = torch.randn(4, requires_grad=LEAF)
for i in range(6):
    x = torch.randn(4) * (i != 3)
    LOSS
    UPDATE
print("ended")
"""
ROOT = "torch.sqrt((w * x).abs().sum()) + (w * w).sum()"
LOSS = f"loss = {ROOT}"
LOOPS = {
    "leaves": (True, LOSS, "loss.backward(); w.data -= 0.1 * w.grad; w.grad = None"),
    "new leaves": (
        True,
        LOSS,
        "w = (w - 0.1 * torch.autograd.grad(loss, [w])[0]).detach().requires_grad_()",
    ),
    "torch.func": (False, "pass", f"w = w - 0.1 * grad(lambda w: {ROOT})(w)"),
    "torch.func, a dict": (
        False,
        "pass",
        "w = w - 0.1 * grad(lambda p: " + ROOT.replace("w", 'p["w"]') + ')({"w": w})["w"]',
    ),
}


def of(name, policy="stop"):
    leaf, loss, update = LOOPS[name]
    return LOOP.replace("LEAF", str(leaf)).replace("LOSS", loss).replace("UPDATE", update), "--on-alarm", policy


@pytest.mark.parametrize("name", LOOPS)
def test_the_derivative_is_the_birth(tmp_path, name):
    got = run(tmp_path, *of(name))
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (got.code, alarm["step"], alarm["rerun"]) == (1, 4, "persistent"), got.text()
    assert (birth["phase"], alarm["cause"]["class"]) == ("backward", "domain-edge"), got.text()
    assert "sqrt(" in birth["source"], got.text()


@pytest.mark.parametrize("name", ["new leaves", "torch.func"])
def test_under_warn_it_is_reported_once(tmp_path, name):
    got = run(tmp_path, *of(name, "warn"))
    assert (got.code, got.out) == (0, "ended\n") and got.the_alarm()["weights"] == "damaged", got.text()


def test_an_update_that_makes_it_is_named(tmp_path):
    update = "g, = torch.autograd.grad((w * x).sum(), [w]); w = (w - g / g.norm()).detach().requires_grad_()"
    got = run(tmp_path, LOOP.replace("LEAF", "True").replace("LOSS", "pass").replace("UPDATE", update))
    got.assert_no_alarm()  # what it computes may be data
    (advisory,) = got.advisories("handled-by-script")
    assert (advisory["births"][0]["op"], advisory["cause"]["class"]) == ("aten::div", "division-by-zero"), got.text()
    assert "g / g.norm()" in advisory["births"][0]["source"] and "all finite" not in got.err, got.text()


ROWS = """
import torch
from torch.func import grad
rows = torch.randn(6, 3)
rows[FIRST:] = VALUE
for row in rows:
    row = ROW
    TAKE
print("ended")
"""


@pytest.mark.parametrize("first, value, made", [(1, "float('nan')", "row"), (3, "0", "row / row.norm()")])
@pytest.mark.parametrize(
    "take",
    ["grad(lambda x: (x * x).sum())(row)", "x = row.clone().requires_grad_(); torch.autograd.grad((x * x).sum(), x)"],
)
def test_derivatives_at_nonfinite_data_are_no_alarm(tmp_path, take, first, value, made):
    text = ROWS.replace("FIRST", str(first)).replace("VALUE", value).replace("= ROW", f"= {made}")
    got = run(tmp_path, text.replace("TAKE", take))
    got.assert_no_alarm()
    assert (got.code, got.out) == (0, "ended\n") and "all finite" not in got.err, got.text()


BOTH = """
import torch
from torch.func import grad
torch.manual_seed(0)
for row in (torch.randn(4), torch.randn(4), torch.full((4,), float("nan"))):
    grad(lambda x: (x * x).sum())(row)
w = torch.randn(4)
for i in range(6):
    w = w - 0.1 * grad(lambda w: (w * w).sum() / (i != 3))(w)
"""


def test_what_comes_after_such_data_is_still_watched(tmp_path):
    alarm = run(tmp_path, BOTH).the_alarm()
    assert alarm["weights"] == "damaged" and "(i != 3)" in alarm["births"][0]["source"], alarm


def test_unread_gradients_are_not_called_finite(tmp_path):
    last = LOOP.replace("LEAF", "True").replace("LOSS", LOSS).replace("i != 3", "i != 5")
    got = run(tmp_path, last.replace("UPDATE", LOOPS["new leaves"][2]))
    got.assert_no_alarm()
    assert "as the program ended, w is not finite (4 NaN of 4)" in got.err and "all finite" not in got.err, got.text()


def test_weights_that_no_loss_reads_were_not_written_at_the_end(tmp_path):
    text = """
    import torch
    torch.manual_seed(0)
    table = torch.randn(6, 2, requires_grad=True)
    squares = torch.zeros(6, 2)
    for i in range(8):
        loss = table[:4].pow(2).sum()
        table.grad = None
        loss.backward()
        with torch.no_grad():
            squares += table.grad ** 2
            table -= 0.01 * table.grad / squares.sqrt()  # 0 / 0 in the rows that are not read, since the first step
    """
    got = run(tmp_path, text)
    got.assert_no_alarm()
    assert "as the program ended, table is not finite (4 NaN of 12)" in got.err, got.text()
    assert "written after" not in got.err, got.text()
