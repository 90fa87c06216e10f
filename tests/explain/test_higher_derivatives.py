"""A derivative of a derivative is led back to the operation that the program wrote."""

import pytest

from helpers import run

HEAD = """
import torch
from torch import nn
from torch.func import grad, hessian, jvp, vmap
torch.manual_seed(0)
net = nn.Linear(2, SIZE)
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
"""
LOOP = """
for i in range(5):
    x = torch.rand(4, 2)
    out = net(x).reshape(SHAPE).abs()
    if i == 3: out = SPOILT
    loss = loss_of(out)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
ENERGY = """
def energy(f):
    j = torch.linalg.det(f)                 # here
    return (f * f).sum() + (j - 1) ** 2
def loss_of(out):
    return vmap(grad(energy))(out + torch.eye(3)).pow(2).mean()
"""
PENALTY = """
def critic(x):
    y = x.pow(1.5)                          # here
    return y.sum()
def loss_of(out):
    slope, = torch.autograd.grad(critic(out), out, create_graph=True)
    return slope.sum()
"""
CURVED = """
def bent(v):
    return v.pow(1.5).sum()                 # here
def loss_of(out):
    return TWICE
"""
ROOT = """
def bent(v):
    return (v * v).sum().sqrt()             # here
def loss_of(out):
    return TWICE
"""
CASES = {
    "determinant": (ENERGY, 9, "4, 3, 3", "out * 0.0", "det"),
    "gradient penalty": (PENALTY, 3, "4, 3", "out * 0.0", "pow"),
    "grad of grad": (
        CURVED.replace("TWICE", "vmap(grad(lambda v: grad(bent)(v).sum()))(out).sum()"),
        3,
        "4, 3",
        "out * 0.0",
        "pow",
    ),
    "hessian": (CURVED.replace("TWICE", "vmap(hessian(bent))(out).sum()"), 3, "4, 3", "out * 0.0", "pow"),
    "jvp of grad": (
        CURVED.replace("TWICE", "jvp(grad(bent), (out,), (torch.ones_like(out),))[1].sum()"),
        3,
        "4, 3",
        "out * 0.0",
        "pow",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_derivative_of_derivative_is_traced_to_written_line(tmp_path, name):
    program, size, shape, spoilt, word = CASES[name]
    text = HEAD.replace("SIZE", str(size)) + program + LOOP.replace("SHAPE", shape).replace("SPOILT", spoilt)
    got = run(tmp_path, text)
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    here = next(n for n, line in enumerate(text.strip().splitlines(), 1) if "# here" in line)
    assert alarm["step"] == 3 and birth["line"] == here, (birth, alarm["path"])
    place = birth.get("forward") or birth
    assert word in place["op"] and place["line"] == here, place
    assert not alarm["fix"] or alarm["fix"]["line"] == here, alarm["fix"]
    if name == "determinant":
        assert alarm["cause"]["class"] == "degenerate-linalg"
        assert alarm["cause"]["text"].startswith("the second derivative of linalg_det"), alarm["cause"]
        assert "second derivative, through aten::" in place["text"] and "second derivative" in got.err


@pytest.mark.parametrize(
    "twice", ["vmap(hessian(bent))(out).sum()", "vmap(lambda v: jvp(grad(bent), (v,), (torch.ones(3),))[1])(out).sum()"]
)
def test_forward_mode_derivative_is_not_called_a_division(tmp_path, twice):
    text = HEAD.replace("SIZE", "3") + ROOT.replace("TWICE", twice) + LOOP
    alarm = run(tmp_path, text.replace("SHAPE", "4, 3").replace("SPOILT", "out * 0.0")).the_alarm()
    assert alarm["cause"]["class"] == "domain-edge" and alarm["births"][0]["source"].endswith("# here"), alarm["cause"]
    assert "the derivative of sqrt" in alarm["cause"]["text"] and "before the root" in alarm["fix"]["text"]


def test_first_derivative_report_is_unchanged(tmp_path):
    text = (
        HEAD.replace("SIZE", "3")
        + """
def loss_of(out):
    return vmap(grad(lambda v: v.pow(0.5).sum()))(out).sum()          # here
"""
        + LOOP.replace("SHAPE", "4, 3").replace("SPOILT", "out * 0.0")
    )
    birth = run(tmp_path, text).the_alarm()["births"][0]
    assert "text" not in (birth.get("forward") or {}) and birth["source"].endswith("# here")
