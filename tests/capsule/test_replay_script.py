"""`finitude replay --script`: the call in which a bad value was born as a program of its own, which is run here."""

import pathlib
import re
import subprocess

import pytest

import helpers
from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

LOOP = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
data = torch.rand(4, 8, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{before}
def loss_of(x, bad):
{body}
for i in range(4):
    optimizer.zero_grad()
    loss_of(data[i], i == 2).backward()
    optimizer.step()
"""
FUNCTION = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bad):
        ctx.bad = bad
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g / (0.0 if ctx.bad else 1.0), None
"""
# name -> (what stands before the loop, the loss, the operator of the birth)
PROGRAMS = {
    "log of zero": (
        "",
        "p = model(x).abs() * (0.0 if bad else 1.0) + (x.sum() * 0)\nreturn torch.log(p).mean()",
        "aten::log",
    ),
    "zero by zero": (
        "",
        "h = model(x) * (0.0 if bad else 1.0)\nreturn (h / h.norm(dim=1, keepdim=True)).sum()",
        "aten::div",
    ),
    "backward of a square root": (
        "",
        "h = (model(x) * (0.0 if bad else 1.0)).pow(2).sum(1)\nreturn h.sqrt().sum()",
        "aten::div",
    ),
    "a row with nothing left": (
        "",
        "h = model(x)\nmask = torch.zeros(8, 4, dtype=torch.bool)\nmask[3] = bad\n"
        "return F.softmax(h.masked_fill(mask, float('-inf')), 1).pow(2).sum()",
        "aten::_softmax",
    ),
    "custom function": (FUNCTION, "return Scale.apply(model(x), bad).sum()", "aten::div"),
    "half precision": (
        "",
        "h = model(x) * (1e6 if bad else 1.0)\nreturn h.to(torch.float16).float().mean()",
        "aten::_to_copy",
    ),
    "batches of matrices": (
        "",
        "h = model(x).reshape(4, 4, 2)\nq = h * (1e25 if bad else 1.0)\nreturn torch.bmm(q, q.transpose(1, 2)).mean()",
        "aten::bmm",
    ),
    "a large one": (
        "big = torch.rand(8, 300)",
        "h = model(x).sum(1, keepdim=True) * big\nh = h.abs() * (0.0 if bad else 1.0)\n"
        "return torch.log(h.t().contiguous().t()).mean()",
        "aten::log",
    ),
    "a list of tensors": (
        "",
        "h = model(x)\nparts = torch._foreach_div([h, h * 2], 0.0 if bad else 2.0)\nreturn "
        "sum(p.sum() for p in parts) * 1.0",
        "aten::_foreach_div",
    ),
    "backward of a power": ("", "h = model(x).abs() * (0.0 if bad else 1.0)\nreturn (h ** 0.5).sum()", "aten::pow"),
    "backward in place": ("", "h = model(x).abs() * (0.0 if bad else 1.0)\nh.sqrt_()\nreturn h.sum()", "aten::div"),
    "backward of one in a loop": (
        "",
        "h = model(x).abs()\nfor k in range(3):\n    h = (h * (0.0 if bad and k == 1 else "
        "1.0)).sqrt() + 1\nreturn h.sum()",
        "aten::div",
    ),
    "backward of a decomposition": (
        "",
        "h = model(x)\nif bad:\n    h = h * 0 + torch.eye(8, 4)\nu, s, v = torch.linalg.svd(h, full_matrices=False)\n"
        "return u.sum() + s.sum() + v.sum()",
        "aten::div",
    ),
    "complex numbers": (
        "",
        "z = torch.complex(model(x).double(), model(x).double()).repeat(1, 4) * (0 if bad else "
        "1)\nreturn torch.log(z).real.sum()",
        "aten::log",
    ),
}
# The call that they are the derivative of is shown by autograd as well.
DERIVATIVES = {name for name in PROGRAMS if name.startswith("backward")}


def indent(body):
    return "\n".join("    " + line for line in body.splitlines())


def written(folder, capsule):
    """The script that the program without Python writes; `finitude replay` writes the same."""
    texts = []
    for name in ("alone.py", "here.py"):
        out = folder / name.split(".")[0] / "birth.py"
        out.parent.mkdir()
        if name == "alone.py":
            done = subprocess.run(
                [PLAYER, "--script", out, capsule],
                capture_output=True,
                text=True,
                timeout=120,
                env={"PATH": "/nowhere"},
            )
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            assert (result := helpers.finitude(folder, "replay", "--script", str(out), str(capsule))).code == 0, (
                result.text()
            )
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    return folder / "alone" / "birth.py"


def check(folder, capsule, op):
    script = written(folder, capsule)
    text = script.read_text()
    assert f'"""{op}' in text and len(text.splitlines()) < 60, text
    ran = helpers.plain(folder, script)
    assert ran.code == 0 and re.search(r"^[1-9]\d* values are not finite, as recorded$", ran.out, re.M), (
        text + ran.text()
    )
    assert ("leaves = [" in text) == ("a gradient is not finite, as recorded" in ran.out), text + ran.text()
    return text


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_birth_alone(tmp_path, name):
    before, body, op = PROGRAMS[name]
    result = helpers.run(tmp_path, LOOP.format(before=before, body=indent(body)))
    alarm = result.the_alarm()
    assert alarm["capsule"], result.text()
    text = check(tmp_path, tmp_path / alarm["capsule"], op)
    assert "train.py:" in text
    assert ("def load(" in text) == (name in ("a large one", "complex numbers")) and "import safetensors" not in text
    assert ("leaves = [" in text) == (name in DERIVATIVES), text
    assert ("Only this call of forward is shown" in text) == (
        not name.startswith("backward") and name != "custom function"
    ), text
    if name == "a large one":
        assert (tmp_path / "alone" / "birth.safetensors").is_file() and "empty_strided" in text


OPTIMIZER = """
import torch
torch.manual_seed(0)
w, v = torch.nn.Parameter(torch.rand(5)), torch.nn.Parameter(torch.rand(3, 2))
optimizer = torch.optim.Adam([w, v], lr=0.1, eps=0.0, foreach={foreach})
for i in range(4):
    optimizer.zero_grad()
    ((w * torch.arange(5.0)).sum() + v.sum()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("foreach", [False, True])
def test_a_birth_in_the_optimizer(tmp_path, foreach):
    """A gradient of zero, and nothing added to its square root: 0 / 0 in the step itself."""
    result = helpers.run(tmp_path, OPTIMIZER.format(foreach=foreach))
    alarm = result.the_alarm()
    assert alarm["births"][0]["phase"] == "optimizer" and alarm["capsule"], result.text()
    assert alarm["births"][0]["op"] == "aten::addcdiv_"
    check(tmp_path, tmp_path / alarm["capsule"], "aten::_foreach_addcdiv_" if foreach else "aten::addcdiv_")


def test_a_script_that_differs_says_so(tmp_path):
    before, body, op = PROGRAMS["log of zero"]
    capsule = tmp_path / helpers.run(tmp_path, LOOP.format(before=before, body=indent(body))).the_alarm()["capsule"]
    script = written(tmp_path, capsule)
    script.write_text(
        script.read_text().replace("torch.ops.aten.log.default(self)", "torch.ops.aten.log.default(self + 1)")
    )
    ran = helpers.plain(tmp_path, script)
    assert ran.code == 1 and "recorded were" in ran.err
