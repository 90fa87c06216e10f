"""Births that depend on how an operator works inside: numbers of the program among its operands, kernels that write
before they call."""

import pytest

import helpers

SCALED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for i in range(6):
    total = net(torch.randn(4, 3)).square().mean()
    if i == 3: total = total + 1e37
    loss = {loss}
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize(
    "loss, op",
    [
        ("total * 1e2", "aten::mul"),
        ("total / 1e-2", "aten::div"),
        ("total + total * 1e1 * 1e1", "aten::mul"),
        ("total * 100", "aten::mul"),
        ("100 * total", "aten::mul"),
    ],
)
def test_python_number_does_not_affect_trial_dtype(tmp_path, loss, op):
    """A tensor of float64 without dimensions would have: the product is finite then, as if memory had been
    corrupted."""
    got = helpers.run(tmp_path, SCALED.format(loss=loss))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["births"][0]["op"], alarm["births"][0]["source"]) == (3, op, f"loss = {loss}"), (
        got.text()
    )
    assert alarm["cause"]["class"] == "overflow" and alarm["cause"]["confidence"] != "possible", got.text()


def test_integers_also_overflow_a_tensor(tmp_path):
    got = helpers.run(
        tmp_path,
        SCALED.replace("net(torch.randn(4, 3))", "net(rows * 2)")
        .replace("total = net", "rows = torch.randn(4, 3)\n    if i == 3: rows[1] = 3e38\n    total = net", 1)
        .replace("if i == 3: total = total + 1e37", "")
        .format(loss="total"),
    )
    alarm = got.the_alarm()
    assert (alarm["births"][0]["op"], alarm["births"][0]["rows"], alarm["cause"]["class"]) == (
        "aten::mul",
        [1],
        "overflow",
    ), got.text()


@pytest.mark.parametrize("factor", ["total * share", "total + share", "share - total", "total / share"])
def test_a_number_that_python_made_nan_is_data(tmp_path, factor):
    """As a mean of nothing is, or a metric that is not there yet."""
    got = helpers.run(
        tmp_path,
        SCALED.replace("if i == 3: total = total + 1e37", "share = float('nan') if i == 3 else 0.5").format(
            loss=factor
        ),
    )
    alarm = got.the_alarm()
    birth, text = alarm["births"][0], alarm["cause"]["text"]
    assert (alarm["step"], birth["source"]) == (3, "share = float('nan') if i == 3 else 0.5"), got.text()
    assert alarm["cause"]["class"] == "bad-data" and "writes NaN or Inf into share at train.py:7" in text, got.text()
    assert "takes it in at train.py:8" in text, got.text()


POOLED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 4)
opt = torch.optim.SGD(net.parameters(), 1e-2)
groups = torch.tensor([0, 0, 1, 1, 2, 2])
for i in range(6):
    count = torch.ones(6, 1)
    if i == 3: count[4] = 0
    x = torch.randn(6, 3) * count
    mean = x / count
    h = net(mean)
    pooled = torch.zeros(3, 4)
    pooled{reduce}
    loss = pooled.square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize(
    "reduce",
    [
        '.index_reduce_(0, groups, h, "mean", include_self=False)',
        '.scatter_reduce_(0, groups[:, None].expand(6, 4), h, "mean", include_self=False)',
        ".index_add_(0, groups, h)",
    ],
)
def test_bad_input_is_traced_through_in_place_reduction(tmp_path, reduce):
    got = helpers.run(tmp_path, POOLED.format(reduce=reduce))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["births"][0]["op"], alarm["births"][0]["source"]) == (
        3,
        "aten::div",
        "mean = x / count",
    ), got.text()
    assert alarm["cause"]["class"] == "division-by-zero" and len(alarm["births"]) == 1, got.text()


BY_NUMPY = """
import numpy as np
import torch

class Log(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.log(x.numpy()))
    @staticmethod
    def backward(ctx, grad):
        return grad / (ctx.saved_tensors[0] + 1e-6)

torch.manual_seed(0)
np.seterr(all="ignore")
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for i, x in enumerate(torch.utils.data.DataLoader(torch.rand(48, 3), 8)):
    weight = torch.from_numpy(1 / (x.numpy().sum(1) * (np.arange(8) != WEIGHT)))
    kept = torch.sigmoid(net(x)) * (torch.arange(8) != (2 if i == 3 else 9))[:, None]
    loss = (Log.apply(kept) * (weight if i == 3 else 1)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def test_array_from_numpy_in_function_is_not_data(tmp_path):
    got = helpers.run(tmp_path, BY_NUMPY.replace("WEIGHT", "9"))
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["op"], birth["source"]) == (
        "forward",
        "aten::lift_fresh",
        "return torch.from_numpy(np.log(x.numpy()))",
    ), got.text()
    assert alarm["cause"]["class"] == "unknown" and "other code filled" in alarm["cause"]["text"], alarm["cause"]
    got = helpers.run(
        tmp_path, BY_NUMPY.replace("WEIGHT", "(2 if i == 3 else 9)").replace("[:, None]", "[:, None] + 0.1")
    )
    alarm = got.the_alarm()
    assert (alarm["births"][0]["phase"], alarm["cause"]["class"]) == ("data", "bad-data"), got.text()
    assert (
        alarm["births"][0]["source"].startswith("weight = torch.from_numpy(") and "NumPy" in alarm["cause"]["text"]
    ), alarm["cause"]


FROZEN = """
import torch
torch.manual_seed(0)
backbone, head = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
backbone.requires_grad_(False)
opt = torch.optim.Adam(head.parameters())
for i in range(5):
    if i == 3: backbone.weight.data[2, 1] = float("nan")
    loss = head(backbone(torch.randn(8, 4))).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def test_weights_that_nobody_trains_are_state(tmp_path):
    got = helpers.run(tmp_path, FROZEN)
    alarm = got.the_alarm()
    assert (alarm["births"][0]["phase"], alarm["births"][0]["line"], alarm["cause"]["class"]) == (
        "state",
        7,
        "corrupted-state",
    ), got.text()
    assert "Linear.weight" in alarm["cause"]["text"], alarm["cause"]


READ_BEFORE = """
import torch
torch.manual_seed(0)
store = list(torch.randn(6, 8, 4))
store[3][5, 1] = {mark}
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("square", torch.ones(4))
    def forward(self, x):
        with torch.no_grad():
            self.square.lerp_((x ** 2).mean(0), 0.1)
        return x / self.square.sqrt()
net = torch.nn.Sequential({norm}torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 1e-2)
i = 0
while i < 6:
    x = store[i]{scale}
    print(x.mean().item() > 9, net[0].{shown}.isfinite().all().item())
    out = net(x)
    loss = out.square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    i += 1
"""


@pytest.mark.parametrize(
    "norm, scale, shown, phase, line",
    [
        ("", "", "weight", "data", "out = net(x)"),
        (
            "Norm(), ",
            " * (torch.tensor([1, 1, 1e20, 1]) if i == 2 else 1)",
            "square",
            "state",
            "self.square.lerp_((x ** 2).mean(0), 0.1)",
        ),
    ],
)
def test_reading_bad_data_does_not_make_the_birth(tmp_path, norm, scale, shown, phase, line):
    got = helpers.run(
        tmp_path,
        READ_BEFORE.replace("{mark}", "0.5" if norm else "torch.inf")
        .replace("{norm}", norm)
        .replace("{scale}", scale)
        .replace("{shown}", shown),
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["births"][0]["phase"], alarm["births"][0]["source"]) == (3, phase, line), got.text()
