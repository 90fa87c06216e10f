"""A fix is called verified only after the whole captured step was computed with it; what it may not change is
checked."""

import subprocess
import sys

import pytest
import torch  # noqa: F401  its libraries

import helpers
from finitude.report import patch

# Three steps; at the last one `bad` is written into the batch. The model's line is what a test is about.
SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(1)
data = [torch.rand(8, 6) + 0.5 for _ in range(3)]
layer = torch.nn.Linear(6, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
DEFINITIONS
for step, x in enumerate(data):
    if step == 2:
        BAD
    optimizer.zero_grad()
    LINES
    loss.backward()
    optimizer.step()
"""


def run(folder, lines, bad="x[3] = 0", *options, definitions=""):
    script = (
        SCRIPT.replace("DEFINITIONS", definitions)
        .replace("LINES", "\n    ".join(lines.strip().splitlines()))
        .replace("BAD", bad)
    )
    return helpers.run(folder, script, *options), script


def fix_of(result):
    alarm = result.the_alarm()
    assert alarm["step"] == 2 and alarm["rerun"] == "persistent", result.text()
    return alarm["fix"], alarm["cause"]


VERIFIED = {
    "log of zero, forward": "y = torch.log(x.sum(1, keepdim=True))\nloss = (y * layer(x)).mean()",
    "division, forward": "y = x / x.sum(1, keepdim=True)\nloss = layer(y).pow(2).mean()",
    "square root, backward": "h = layer(x) * x\nd = h.pow(2).sum(1).sqrt()\nloss = d.mean()",
    "norm behind where": "h = layer(x) * x\nd = h.pow(2).sum(1)\nloss = torch.where(d > 0, d.sqrt(), d).mean()",
    "log behind where, backward": "h = (layer(x) * x).abs().sum(1)\nloss = torch.where(h > 0, torch.log(h), h).mean()",
    "power, backward": "h = (layer(x) * x).pow(2).sum(1)\nloss = h.pow(0.25).mean()",
    "log of a negative number, whose gradient is finite": "h = (layer(x) * 0 + x).sum(1) - 1\nloss "
    "= torch.log(h).mean()",
    "two births in two lines": "a = torch.log(x.sum(1, keepdim=True))\nb = torch.log(x.prod(1, keepdim=True))\n"
    "loss = ((a + b) * layer(x)).mean()",
    "somebody counts what is NaN": "d = x / x.sum(1, keepdim=True)\nseen = (d == d).sum()\nloss = "
    "layer(d).pow(2).mean()",
    "half precision": "h = (layer(x) * 10).half() * (6000 * (x.sum(1, keepdim=True) == 0) + "
    "1).half()\nloss = h.pow(2).float().mean()",
    "sign of NaN, which is zero": "h = x[:, 0] / x.sum(1)\nloss = (layer(x).sum(1) - h).abs().mean()",
    "comparison with NaN, which does not hold": "h = x[:, 0] / x.sum(1)\nloss = (layer(x).sum(1) - "
    "h).clamp(min=-9).mean()",
    "checkpointed": "def part(x):\n    h = (layer(x) * x).pow(2).sum(1)\n    return h.sqrt()\n"
    "loss = checkpoint(part, x, use_reentrant=False).mean()",
    "two losses of one line": "h = [(layer(part) * part).pow(2).sum(1) for part in (x[:4], x[4:])]\n"
    "loss = sum(part.sqrt().mean() for part in h)",
    "a quotient that broadcasts": "h = layer(x) * x\nn = (h * h).sum(1, keepdim=True)\nloss = (h / "
    "n).sum(1).pow(2).mean()",
    "cosh of large numbers of both signs": "h = layer(x) + 1000 * (x.sum(1, keepdim=True) == 0) * "
    "torch.tensor([1, -1, 1, -1, 1, -1])\nloss = h.cosh().log().mean()",
}


@pytest.mark.parametrize("name", VERIFIED)
def test_a_fix_is_verified_on_the_step(tmp_path, name):
    result, _ = run(tmp_path, VERIFIED[name])
    fix, cause = fix_of(result)
    assert fix["verified"], (fix, cause)
    assert fix["tried"] and "finite" in fix["outcome"]
    assert "verified on this step" in " ".join(result.err.split()), result.text()
    assert cause["tried_seconds"] <= cause["budget_seconds"] <= 60 and not cause["out_of_time"]
    again = [e for e in cause["experiments"] if "again as it was" in e["name"]]
    assert again and again[0]["outcome"] == "the same bits each time"


@pytest.mark.parametrize(
    "made, reads",
    [
        ("torch.rand(48, 1, 6, 6)", "torch.nn.Conv2d(1, 3, 3)"),  # its parts call it otherwise than the call does
        ("torch.rand(48, 3, 6)", "torch.nn.BatchNorm1d(3)"),
        ("torch.rand(48, 6)", "torch.nn.Linear(6, 3)"),
    ],
    ids=["convolution", "normalisation", "linear"],
)
def test_bad_data_is_filled_where_first_read(tmp_path, made, reads):
    result = helpers.run(
        tmp_path,
        f"""
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        torch.manual_seed(0)
        x = {made}
        x[37].view(-1)[2] = float("nan")
        net = torch.nn.Sequential({reads}, torch.nn.Flatten(), torch.nn.LazyLinear(2))
        net(x[:2])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for part, in DataLoader(TensorDataset(x), batch_size=8):
            loss = net(part).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
    )
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["cause"]["class"], alarm["births"][0]["samples"]) == (4, "bad-data", [37]), (
        result.text()
    )
    assert alarm["fix"]["verified"] and "replaced by 0" in alarm["fix"]["tried"], alarm["fix"]


@pytest.mark.parametrize("name", ["log of zero, forward", "square root, backward", "norm behind where"])
def test_the_diff_mends_the_program(tmp_path, name):
    result, script = run(tmp_path, VERIFIED[name])
    fix, _ = fix_of(result)
    target = tmp_path / "mended.py"
    target.write_text((tmp_path / "train.py").read_text())
    subprocess.run(["patch", "-p1", str(target)], input=fix["diff"], text=True, check=True, capture_output=True)
    (tmp_path / "again").mkdir()
    mended = helpers.run(tmp_path / "again", target.read_text())
    assert mended.code == 0 and not mended.alarms, mended.text()


def test_fix_leaving_another_bad_value_is_not_verified(tmp_path):
    result, _ = run(
        tmp_path,
        "y = torch.log(x.sum(1, keepdim=True))\nz = torch.exp(x[:, :1] * 0 + 500 * (step == 2))\n"
        "loss = ((y + z) * layer(x)).mean()",
    )
    fix, _ = fix_of(result)
    assert not fix["verified"] and "not finite" in fix["outcome"], fix


def test_fix_changing_innocent_rows_is_not_verified(tmp_path):
    # exp(88.715) is just in range; every clamp that helps row 3 changes row 5 as well.
    result, _ = run(
        tmp_path, "y = torch.exp(x[:, 0]) / 1e30\nloss = (y * layer(x)[:, 0]).mean()", "x[3, 0] = 89; x[5, 0] = 88.715"
    )
    fix, _ = fix_of(result)
    assert not fix["verified"] and "changes what was finite" in fix["outcome"], fix
    assert "became" in fix["outcome"]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the place of an expression within its line is known from Python 3.11 on"
)
def test_only_guilty_expression_on_a_line_is_fixed(tmp_path):
    # 1e-20 is a number whose logarithm must stay as it is; all rows of the other one are zero.
    lines = "q = torch.full((8,), 1e-20)\nloss = (torch.log(q) + layer(x)[:, 0] * torch.log(x[:, 1].abs())).mean()"
    result, _ = run(tmp_path, lines, "x[:, 1] = 0")
    fix, _ = fix_of(result)
    assert fix["verified"] and "torch.log(q)" in fix["diff"] and "torch.log(x[:, 1].abs().clamp(" in fix["diff"], fix


def test_guilty_call_of_a_loop_is_fixed_alone(tmp_path):
    # The same expression for each column. exp(88.715) is just in range: what helps the first column changes the second
    # as well.
    lines = (
        "parts = []\nfor k in range(3):\n    parts.append(torch.exp(x[:, k]) / 1e30)\nloss = "
        "(torch.stack(parts, 1) * layer(x)[:, :1]).mean()"
    )
    result, _ = run(tmp_path, lines, "x[3, 0] = 89; x[5, 1] = 88.715")
    fix, cause = fix_of(result)
    assert fix["verified"] and "in call 1 of the 3 from that line" in fix["tried"] and "diff" not in fix, (fix, cause)
    assert any(
        "changes what was finite" in e["outcome"] and "from that line" not in e["name"] for e in cause["experiments"]
    ), cause


def test_without_experiments_nothing_is_tried(tmp_path):
    result, _ = run(tmp_path, VERIFIED["log of zero, forward"], "x[3] = 0", "--experiments", "0")
    fix, cause = fix_of(result)
    assert not fix["verified"] and "tried" not in fix and "budget_seconds" not in cause
    assert not any("whole step" in e["name"] for e in cause["experiments"])


def test_custom_backward_is_fixed_at_its_own_line(tmp_path):
    result, _ = run(
        tmp_path,
        "loss = Ratio.apply(layer(x) * x).mean()",
        definitions="""
class Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x / x
""",
    )
    fix, cause = fix_of(result)
    assert cause["class"] == "wrong-backward" and fix["verified"], (fix, cause)


def edit(code=".clamp(min=1e-12)", op="aten::log", arg="self", line=3, **more):
    return {"op": op, "arg": arg, "code": code, "line": line, "file": "f.py", "is_number": False, **more}


@pytest.mark.parametrize(
    ("line", "change", "expected"),
    [
        ("y = torch.log(p)", {}, "y = torch.log(p.clamp(min=1e-12))"),
        ("y = p.log()", {}, "y = p.clamp(min=1e-12).log()"),
        ("y = torch.log(1 - p).mean()", {}, "y = torch.log((1 - p).clamp(min=1e-12)).mean()"),
        ("y = (a + b).sum(1) / n", {"op": "aten::div", "arg": "other"}, "y = (a + b).sum(1) / n.clamp(min=1e-12)"),
        (
            "y = a / (b - c)",
            {"op": "aten::div", "arg": "other", "code": "torch.where({x} == 0, 1, {x})"},
            "y = a / (torch.where(b - c == 0, 1, b - c))",
        ),
        (
            "y = torch.softmax(s, -1)",
            {"op": "aten::_softmax", "code": ".clamp(min=torch.finfo({x}.dtype).min)"},
            "y = torch.softmax(s.clamp(min=torch.finfo(s.dtype).min), -1)",
        ),
        ("y = torch.log(p) + torch.log(q)", {}, None),  # which of the two?
        (
            "y = torch.log(p) + torch.log(q)",
            {"span": [3, 19, 3, 31]},
            "y = torch.log(p) + torch.log(q.clamp(min=1e-12))",
        ),
        (
            "y = [torch.log(a) for a in p] + torch.log(q)",
            {"span": [3, 5, 3, 17]},
            "y = [torch.log(a.clamp(min=1e-12)) for a in p] + torch.log(q)",
        ),
        ("y = torch.log(p)", {"span": [3, 4, 5, 1]}, "y = torch.log(p.clamp(min=1e-12))"),  # not as ast has it
        (
            "e = torch.exp(s)",
            {"op": "aten::exp", "code": "{x} - {x}.amax(1, keepdim=True)"},
            "e = torch.exp(s - s.amax(1, keepdim=True))",
        ),
        (
            "e = (s / t).exp()",
            {"op": "aten::exp", "code": "{x} - {x}.amax(1, keepdim=True)"},
            "e = ((s / t) - (s / t).amax(1, keepdim=True)).exp()",
        ),
        ("e = torch.exp(a @ b.t())", {"op": "aten::exp", "code": "{x} - {x}.amax(1, keepdim=True)"}, None),
        ("y = f(p)", {}, None),
        ("y = math.log(p)", {}, None),  # another module's
        (
            "y = a / g()",
            {"op": "aten::div", "arg": "other", "code": "torch.where({x} == 0, 1, {x})"},
            None,
        ),  # called twice
        ("h = lambda p: torch.log(p)", {}, None),
        ("y = torch.log(*p)", {}, None),
    ],
)
def test_line_is_rewritten_only_where_certain(line, change, expected):
    lines = ["import math\n", "import torch\n", line + "\n", "z = 1\n"]
    diff = patch.diff_of(lines, edit(**change), "f.py")
    if expected is None:
        assert diff is None
    else:
        assert f"-{line}\n+{expected}\n" in diff and diff.startswith("--- f.py\n+++ f.py\n")


def test_autograd_grad_birth_is_fixed_at_forward_line(tmp_path):
    got = helpers.training(
        tmp_path,
        """
        def radius(x):
            return (x * x).sum(1).sqrt()
        for i, x in enumerate(batches):
            if i == 3:
                x[2] = 0.0
            x.requires_grad_()
            opt.zero_grad()
            u = model(x).sum() + radius(x).sum()
            (g,) = torch.autograd.grad(u, x, create_graph=True)
            (g.pow(2).mean() + model(x).pow(2).mean()).backward()
            opt.step()
    """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    birth, shown = alarm["births"][0], " ".join(got.err.split())
    assert (birth["phase"], birth["source"]) == ("backward", "return (x * x).sum(1).sqrt()"), got.text()
    assert birth["forward"]["source"] == "return (x * x).sum(1).sqrt()"
    assert f"aten::sqrt train.py:{birth['forward']['line']} return (x * x).sum(1).sqrt()" in shown, shown
    assert (
        alarm["fix"]["line"] == birth["forward"]["line"] and f"train.py:{birth['forward']['line']} [verified" in shown
    ), shown
    assert "+    return (x * x).sum(1).clamp(" in alarm["fix"]["diff"]


CURVED = """
    w = torch.nn.Parameter(torch.randn(3, 3))
    opt = torch.optim.Adam([w], lr=1e-3)
    for i in range(6):
        x = torch.randn(5, 3)
        cos = torch.cosine_similarity(x @ w, x, dim=1)
        if i == 3:
            cos = torch.where(torch.arange(5) < 2, cos / cos.detach(), cos)
        angle = torch.acos(ARGUMENT).mean()
        g, = torch.autograd.grad(angle, w, create_graph=True)
        loss = (x @ (w - 0.1 * g)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        print(i, loss.item(), float(w.grad.abs().sum()))
        opt.step()
"""


def test_clamp_is_followed_into_second_derivatives(tmp_path):
    """Tried on the step it comes out as in the program; and it belongs to the line of the acos, not to that of
    autograd.grad."""
    clamped = helpers.training(tmp_path, CURVED.replace("ARGUMENT", "cos.clamp(-0.999999, 0.999999)"))
    assert clamped.report["outcome"] == "clean", clamped.text()
    got = helpers.training(tmp_path, CURVED.replace("ARGUMENT", "cos"), "--on-alarm", "stop")
    alarm = got.the_alarm()
    birth, fix = alarm["births"][0], alarm["fix"]
    assert birth["node"] == "AcosBackward0" and "acos" in birth["source"], got.text()
    assert fix["line"] == birth["forward"]["line"] and "acos" in birth["forward"]["source"]
    (tried,) = [
        e for e in alarm["cause"]["experiments"] if e["name"] == "whole step, self clamped to [-0.999999, 0.999999]"
    ]
    assert "not finite" not in tried["outcome"], got.text()
    assert fix["verified"], got.text()


SOFTMAX = {
    "rows": "s = layer(x) * x\ne = torch.exp(s)\np = e / e.sum(1, keepdim=True)\nloss = (p * p).mean()",
    "columns, with an epsilon": "s = layer(x) * x\ne = torch.exp(s)\np = e / (e.sum(0, keepdim=True) + 1e-8)\n"
    "loss = (p * p).mean()",
    "one of each row": "s = layer(x) * x\ne = torch.exp(s)\nloss = (e[:, 0] / e.sum(1)).mean()",
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_written_out_gets_its_maximum_subtracted(tmp_path, name):
    """A clamp would make the step finite too, and would give the large values no gradient."""
    result, _ = run(tmp_path, SOFTMAX[name], "x[3] = 2000")
    fix, cause = fix_of(result)
    assert cause["class"] == "exp-overflow" and fix["verified"], (fix, cause)
    assert fix["text"].startswith("subtract the maximum first"), fix
    assert "self less its maximum along dimension" in fix["tried"] and "as before" in fix["outcome"], fix
    dimension = "0" if name.startswith("columns") else "1"
    assert f"+    e = torch.exp(s - s.amax({dimension}, keepdim=True))\n" in fix["diff"], fix


def test_softmax_written_out_that_underflows_gets_its_maximum_subtracted(tmp_path):
    lines = "d = (layer(x) + 2 * x).pow(2)\nq = torch.exp(-d)\np = q / q.sum(1, keepdim=True)\nloss = (p * d).mean()"
    fix, cause = fix_of(run(tmp_path, lines, "x[3] = 60")[0])
    assert cause["class"] == "underflow" and fix["verified"], (fix, cause)
    assert fix["text"].startswith("subtract the maximum first"), fix
    assert "+    q = torch.exp((-d) - (-d).amax(1, keepdim=True))\n" in fix["diff"], fix


@pytest.mark.parametrize(
    ("exponent", "value", "expected"), [("s", 2000, "exp-overflow"), ("-(s + 2 * x).pow(2)", 60, "underflow")]
)
def test_logsumexp_written_out_gets_its_maximum_subtracted_and_added(tmp_path, exponent, value, expected):
    """Without the second the logarithm would be another number; what was finite is held against it."""
    lines = f"s = layer(x) * x\nloss = torch.log(torch.exp({exponent}).sum(1)).mean()"
    fix, cause = fix_of(run(tmp_path, lines, f"x[3] = {value}")[0])
    assert cause["class"] == expected and fix["verified"], (fix, cause)
    assert fix["text"].startswith("torch.logsumexp(x, dim) in the place of"), fix
    assert "and added to the logarithm" in fix["tried"] and "as before" in fix["outcome"], fix


def test_infinity_of_a_batch_that_is_read_twice_is_filled_for_both(tmp_path):
    result, _ = run(tmp_path, "loss = (layer(x) * x.sum(1, keepdim=True)).mean()", "x[3, 1] = torch.inf")
    fix, cause = fix_of(result)
    assert cause["class"] == "bad-data" and fix["verified"], (fix, cause)
    assert "at every call that reads the same" in fix["tried"], fix


@pytest.mark.parametrize("root", ["(h * h).sum(1, keepdim=True).sqrt()", "(h * h).sum(1, keepdim=True) ** 0.5"])
def test_norm_with_a_root_is_clamped_before_the_root(tmp_path, root):
    """A clamp behind it does not protect the gradient: the derivative of the root is infinite."""
    fix, cause = fix_of(run(tmp_path, f"h = layer(x) * x\nloss = (h / {root}).mean()")[0])
    assert cause["class"] == "division-by-zero" and fix["verified"], (fix, cause)
    assert "epsilon added to the norm" not in fix["text"] and "before that call" in fix["text"], fix
    refuted = [e for e in cause["experiments"] if "other clamped at 1e-12" in e["name"]]
    assert refuted and refuted[0]["outcome"].startswith("not finite"), cause


def test_a_step_that_rounds_to_eight_bits_can_be_tried(tmp_path):
    lines = "s = 448 / x.amax(1, keepdim=True)\nh = (x * s).to(torch.float8_e4m3fn).float() / s\nloss = layer(h).mean()"
    fix, cause = fix_of(run(tmp_path, lines)[0])
    assert cause["class"] == "division-by-zero" and fix["verified"], (fix, cause)


def test_iterations_that_read_the_loss_refute_no_change(tmp_path):
    """LBFGS computes with the numbers of its losses, which are on the tape as they were."""
    text = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
opt = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=4)
x, target, cap = torch.randn(16, 4), torch.randn(16, 3), torch.rand(16, 3) + 0.5
for step in range(3):
    if step == 2:
        cap[5, 1] = float("inf")
    def closure():
        opt.zero_grad()
        loss = ((model(x) * cap).masked_fill(cap.isinf(), 0.0) - target).pow(2).mean()
        loss.backward()
        return loss
    opt.step(closure)
"""
    fix = helpers.run(tmp_path, text).the_alarm()["fix"]
    assert "torch.where" in fix["text"] and not fix["verified"], fix
    assert fix["outcome"].startswith("cannot be determined: gradients are finite, and the optimizer wrote"), fix


@pytest.mark.parametrize("hides", ["torch.exp(out).clamp(0.8, 1.2)", "torch.where(out > 50, out, torch.exp(out))"])
def test_a_hidden_exponential_is_bounded_as_it_was_tried(tmp_path, hides):
    """A clamp has no branch of which the other part could be taken."""
    text = f"""
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    out = model(torch.randn(8, 4)) + (300 if step == 2 else 0)
    loss = {hides}.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    alarm = helpers.run(tmp_path, text).the_alarm()
    fix = alarm["fix"]
    assert alarm["cause"]["class"] == "exp-overflow" and fix["verified"], alarm
    assert "x <= 0" not in fix["text"] and "clamp it before exp as well" in fix["text"], fix
    assert ("double where" in fix["text"]) == ("where" in hides), fix
