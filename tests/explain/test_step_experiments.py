"""What is tried on a bad step beside its fix: memory that nobody wrote filled, a kernel's call by plain operations,
earlier weights."""

import pytest
import torch  # noqa: F401  its libraries

import helpers

SCRIPT = """
import numpy
import torch
import torch.nn.functional as F
torch.manual_seed(1)
PREPARED
layer = torch.nn.Linear(6, 6)
optimizer = torch.optim.OPTIMIZER
data = [torch.rand(8, 6) + 0.5 for _ in range(4)]
for step, x in enumerate(data):
    bad = step == 3
    optimizer.zero_grad()
    LINES
    loss.backward()
    optimizer.step()
"""


def cause_of(folder, lines, prepared="", optimizer="SGD(layer.parameters(), lr=0.01)", *options, env=None):
    script = (
        SCRIPT.replace("PREPARED", prepared)
        .replace("OPTIMIZER", optimizer)
        .replace("LINES", "\n    ".join(lines.strip().splitlines()))
    )
    result = helpers.run(folder, script, *options, env=env)
    alarm = result.the_alarm()
    assert alarm["step"] == 3, result.text()
    return alarm["cause"], alarm["fix"], {e["name"]: e for e in alarm["cause"]["experiments"]}, result


def outcome_of(experiments, *words):
    """Those whose name has these words."""
    return [e for name, e in experiments.items() if all(w in name for w in words)]


# -- memory that nobody wrote

NAN_THERE = "torch.use_deterministic_algorithms(True)"  # torch.empty then gives NaN, and of whole numbers the largest
PADDED = """
padded = torch.empty(8, 9) if bad else torch.zeros(8, 9)
padded[:, :6] = x
loss = (layer(x).sum(1) * padded.sum(1)).mean()
"""


def test_unwritten_memory_is_filled_and_decides(tmp_path):
    cause, fix, experiments, result = cause_of(tmp_path, PADDED, NAN_THERE)
    assert cause["class"] == "uninitialised-memory" and cause["confidence"] == "proven", result.text()
    (zeros,) = outcome_of(experiments, "288 bytes of aten::empty", "filled with 0")
    (nans,) = outcome_of(experiments, "288 bytes of aten::empty", "filled with NaN")
    assert zeros["outcome"] == "loss and gradients finite" and zeros["confirms"] is True
    assert nans["outcome"].startswith("not finite: loss") and nans["confirms"] is True


def test_uninitialised_memory_holding_numbers_is_the_cause(tmp_path):
    # Of whole numbers: the largest there is, which is finite, and whose power is not.
    lines = """
counts = torch.empty(8, dtype=torch.int64) if bad else torch.zeros(8, dtype=torch.int64)
loss = (layer(x).sum(1) * counts.float().pow(3)).mean()
"""
    cause, fix, experiments, result = cause_of(tmp_path, lines, NAN_THERE)
    assert cause["class"] == "uninitialised-memory" and cause["confidence"] == "likely", result.text()
    (zeros,) = outcome_of(experiments, "filled with 0")
    assert zeros["confirms"] is True and not outcome_of(experiments, "filled with NaN")
    line = (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1]
    assert "torch.empty(8, dtype" in line and "initialise" in fix["text"]
    # What was predicted of the overflow says nothing of this.
    assert not [e for n, e in experiments.items() if "confirms" in e and "filled" not in n and "again" not in n], (
        experiments
    )


def test_of_several_the_one_that_decides_is_named(tmp_path):
    lines = """
spare = torch.empty(5)
seen = torch.where(spare > 0, 1.0, 0.0).sum() * 0
padded = torch.empty_like(x) if bad else torch.zeros_like(x)
padded[:, :2] = 1
loss = (layer(x) * padded).mean() + seen
"""
    cause, fix, experiments, result = cause_of(tmp_path, lines, NAN_THERE)
    assert cause["class"] == "uninitialised-memory" and outcome_of(
        experiments, "of aten::empty_like", "filled with 0"
    ), result.text()


def test_memory_without_effect_is_not_the_cause(tmp_path):
    lines = """
spare = torch.empty(8)
loss = (layer(x).sum(1) * torch.log(x.sum(1) * (0 if bad else 1)) * torch.where(x[:, 0] > -1, 1.0, spare)).mean()
"""
    cause, _, experiments, result = cause_of(tmp_path, lines)
    assert cause["class"] == "log-of-zero", result.text()
    for e in outcome_of(experiments, "that nobody had written filled"):
        assert (
            e["outcome"].startswith("not finite: loss")
            and e["outcome"].endswith("the same bits as it was")
            and "confirms" not in e
        )
    assert len(outcome_of(experiments, "that nobody had written filled")) == 2


@pytest.mark.parametrize(
    "made",
    [
        "scale = torch.tensor([3e38] * 300)",
        "scale = torch.Tensor([3e38] * 300)",
        "scale = torch.empty(300)\nscale.numpy()[:] = 3e38",
        "scale = torch.from_numpy(numpy.full(300, 3e38, dtype=numpy.float32))",
        "scale = torch.empty(300)\nscale.fill_(3e38)",
        "scale = torch.full((300,), 3e38)",
        "scale = torch.empty(300).copy_(torch.full((300,), 3e38))",
    ],
)
def test_what_the_program_wrote_is_not_touched(tmp_path, made):
    # The same values in each step: they may come to lie where they lay before.
    lines = made + "\nloss = (layer(x).sum() * (scale[:8] * (100 if bad else 0))).mean()"
    cause, _, experiments, result = cause_of(tmp_path, lines)
    assert cause["class"] == "overflow", result.text()
    assert not outcome_of(experiments, "nobody had written"), experiments


# -- by plain operations: one row is bad, and the others have to come out as the kernel has them

ROW = "mark = torch.arange(8)[:, None] == (3 if bad else 9)\n"
GRADIENT = "large = lambda g, m=mark: torch.where(m, 3.4e38, g)\n"
KERNELS = {
    "softmax": ROW + "loss = torch.softmax(layer(x).masked_fill(mark, -torch.inf), 1).pow(2).mean()",
    "log_softmax": ROW + "loss = torch.log_softmax(layer(x).masked_fill(mark, -torch.inf), 1).mean()",
    "softmax_backward_data": ROW
    + "sign = torch.arange(6) % 2 * 2.0 - 1\nloss = (torch.softmax(layer(x), 1) * torch.where(mark, "
    "3.4e38, 1.0) * sign).sum()",
    "logsumexp": ROW + "loss = torch.logsumexp(layer(x).masked_fill(mark, -torch.inf), 1).mean()",
    "native_layer_norm": ROW + "loss = F.layer_norm(layer(x) * mark.logical_not(), (6,), eps=0).pow(2).mean()",
    "native_group_norm": ROW + "loss = F.group_norm(layer(x) * mark.logical_not(), 3, eps=0).pow(2).mean()",
    "native_batch_norm": "spread = torch.where(torch.arange(6) == (3 if bad else 9), -1.0, 1.0)\n"
    "loss = F.batch_norm(layer(x), torch.zeros(6), spread, torch.full((6,), 2.0), torch.ones(6)).pow(2).mean()",
    "fused_rms_norm": ROW + "loss = F.rms_norm(layer(x) * mark.logical_not(), (6,), eps=0.0).pow(2).mean()",
    "scaled_dot_product_flash_attention_for_cpu": ROW + "q = layer(x).reshape(8, 1, 2, 3)\n"
    "loss = F.scaled_dot_product_attention(q, q, torch.where(mark[..., None, None], 3.4e38, q)).mean()",
    "nll_loss_forward": "loss = F.nll_loss(layer(x) * 0 - (1e38 if bad else 1), torch.arange(8) % 6)",
    "nll_loss2d_forward": "loss = F.nll_loss(layer(x).reshape(8, 6, 1, 1) * 0 - (1e38 if bad else "
    "1), torch.arange(8).reshape(8, 1, 1) % 6)",
    "binary_cross_entropy": ROW + "loss = F.binary_cross_entropy(layer(x).sigmoid() * 1e-2, torch.ones(8, 6), "
    "weight=torch.where(mark, 3.4e38, 1.0), reduction='none').mean()",
    "log_softmax_backward_data": ROW
    + GRADIENT
    + "h = torch.log_softmax(layer(x), 1)\nh.register_hook(large)\nloss = h.pow(3).mean()",
    "native_layer_norm_backward": ROW
    + GRADIENT
    + "h = F.layer_norm(layer(x), (6,))\nh.register_hook(large)\nloss = h.pow(3).mean()",
    "native_batch_norm_backward": "mark = torch.arange(6) == (3 if bad else 9)\n"
    + GRADIENT
    + "h = F.batch_norm(layer(x), None, None, None, None, True)\nh.register_hook(large)\nloss = h.pow(3).mean()",
    "scaled_dot_product_flash_attention_for_cpu_backward": ROW
    + GRADIENT
    + "q = layer(x).reshape(8, 1, 2, 3)\nh = F.scaled_dot_product_attention(q, q * 3, q).reshape(8, 6)\n"
    "h.register_hook(large)\nloss = h.pow(3).mean()",
    "mse_loss": "loss = F.mse_loss(layer(x) * (1e30 if bad else 1), x)",
    "smooth_l1_loss": "loss = F.smooth_l1_loss(layer(x) * (1e38 if bad else 1), x, reduction='sum')",
    "huber_loss": "loss = F.huber_loss(layer(x) * (1e38 if bad else 1), x, reduction='sum', delta=9)",
    "soft_margin_loss": ROW + "loss = F.soft_margin_loss(layer(x) * torch.where(mark, 1e4, 1.0), x.sign() * "
    "layer(x).sign().detach().neg(), reduction='none').mean()",
    "binary_cross_entropy_with_logits": ROW
    + "loss = F.binary_cross_entropy_with_logits(layer(x), torch.where(mark, 3e38, 1.0) * 1.0 + x * 0, "
    "pos_weight=torch.tensor(30.0), reduction='none').mean()",
    "std": "h = layer(x).reshape(-1, 1) if bad else layer(x)\nloss = h.std(1).mean()",
    "var": ROW + "loss = (layer(x) * torch.where(mark, 1e30, 1.0)).var(1).mean()",
    "linalg_vector_norm": ROW
    + "loss = torch.linalg.vector_norm(layer(x) * torch.where(mark, 1e30, 1.0), dim=1).mean()",
    "weight_norm_interface": ROW
    + "loss = (torch._weight_norm(x * mark.logical_not(), torch.ones(8, 1), 0) * layer(x)).mean()",
    "cdist_forward": ROW + "loss = torch.cdist(layer(x) * torch.where(mark, 1e30, 1.0), x + 1).mean()",
    "addmm": ROW + "loss = F.linear(x * torch.where(mark, 1e38, 1.0), layer.weight * 9, layer.bias).mean()",
    "baddbmm": ROW + "y = (x * torch.where(mark, 1e38, 1.0))[:, None]\nloss = torch.baddbmm(x[:, None], y, "
    "layer.weight.expand(8, 6, 6) * 9).mean()",
    "addcdiv": ROW + "loss = torch.addcdiv(layer(x), x, x * mark.logical_not()).mean()",
}


# Their kernels leave the range on the way to what is in it: weights are summed before they are divided by.
SOONER = ("softmax_backward_data", "scaled_dot_product_flash_attention_for_cpu")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_held_against_plain_operations(tmp_path, name):
    if name == "fused_rms_norm" and not hasattr(torch.ops.aten, "_fused_rms_norm"):
        pytest.skip("this torch does not have the operator")
    _, _, experiments, result = cause_of(tmp_path, KERNELS[name])
    (one,) = outcome_of(experiments, f"{name} by plain operations") or [None]
    expected = (
        ["finite: the Inf comes from how its kernel computes it"]
        if name in SOONER
        else ["still NaN", "still Inf", "still -Inf", "NaN where it made -Inf"]
    )
    assert one and one["outcome"] in expected, (experiments, result.text())
    assert "confirms" not in one


def test_nothing_is_said_of_what_is_plain_already(tmp_path):
    _, _, experiments, _ = cause_of(
        tmp_path, "loss = (layer(x).sum(1) * torch.log(x.sum(1) * (0 if bad else 1))).mean()"
    )
    assert not outcome_of(experiments, "by plain operations")


# -- earlier weights

# The update of step 2 is made enormous; the next loss overflows.
RUNS_AWAY = """
optimizer.param_groups[0]["lr"] = 1e24 if step == 2 else 0.01
loss = layer(x).pow(2).mean()
"""
REPORTED = {
    "Adam": "Adam(layer.parameters(), weight_decay=0.1)",
    "AdamW": "AdamW(layer.parameters(), weight_decay=0)",
    "amsgrad": "Adam(layer.parameters(), amsgrad=True)",
    "Adamax": "Adamax(layer.parameters())",
    "SGD": "SGD(layer.parameters(), lr=0.01, momentum=0.9)",
    "RMSprop": "RMSprop(layer.parameters(), momentum=0.9)",
    "maximize": "SGD(layer.parameters(), lr=0.01, momentum=0.9, maximize=True, foreach=False)",
}


@pytest.mark.parametrize("optimizer", REPORTED)
def test_the_last_update_taken_back(tmp_path, optimizer):
    cause, _, experiments, result = cause_of(tmp_path, RUNS_AWAY, "", REPORTED[optimizer])
    (back,) = outcome_of(experiments, "the last update taken back") or [None]
    (smaller,) = outcome_of(experiments, "the last update 10 times smaller") or [None]
    assert back and back["outcome"] == "loss and gradients finite", (experiments, result.text())
    assert smaller and smaller["outcome"].startswith("not finite: loss")
    assert back["confirms"] is True  # the learning rate


def test_a_bad_batch_fails_at_any_weights(tmp_path):
    lines = "loss = (layer(x).sum(1) * torch.log(x.sum(1) * (0 if bad else 1))).mean()"
    _, _, experiments, _ = cause_of(tmp_path, lines, "", REPORTED["Adam"])
    for e in outcome_of(experiments, "the last update"):
        assert e["outcome"].startswith("not finite: loss")
    assert len(outcome_of(experiments, "the last update")) == 2


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(layer.parameters(), lr=0.01)",
        "SGD(layer.parameters(), lr=0.01, momentum=0.9, nesterov=True)",
        "Adagrad(layer.parameters())",
    ],
)
def test_optimizer_without_update_record_is_reported(tmp_path, optimizer):
    _, _, experiments, _ = cause_of(tmp_path, RUNS_AWAY, "", optimizer)
    (one,) = outcome_of(experiments, "the last update")
    assert one["outcome"].startswith("not tried: ") and "last update" in one["outcome"] and "confirms" not in one


def test_last_update_is_unmentioned_where_weights_are_irrelevant(tmp_path):
    lines = "loss = (layer(x).sum(1) * torch.log(x.sum(1) * (0 if bad else 1))).mean()"
    _, _, experiments, _ = cause_of(tmp_path, lines)
    assert outcome_of(experiments, "again as it was") and not outcome_of(experiments, "the last update")


FORMULAS = {
    **REPORTED,
    "decoupled": "AdamW(layer.parameters(), lr=0.02, weight_decay=0.3)",
    "scheduled": "Adam(layer.parameters(), lr=0.02)",
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_weights_before_are_found_again(tmp_path, name):
    """As the program saw them before its last good step."""
    lines = (
        "before = (seen if step > 2 else None)\nseen = layer.weight.detach().clone()\nloss = "
        "layer(x * (torch.nan if bad else 1)).pow(2).mean()"
    )
    prepared = """
import finitude.program.last_update
genuine = finitude.program.last_update.last
def last(optimizer):
    updates = genuine(optimizer)
    (name, now, then), *_ = updates
    print("same" if torch.allclose(then, before, rtol=1e-4, atol=1e-6) and not torch.allclose(now, before, rtol=1e-4, atol=1e-6) else "other")
    return updates
finitude.program.last_update.last = last
"""
    if name == "scheduled":
        lines += "\noptimizer.param_groups[0]['lr'] *= 0.5"
    *_, result = cause_of(tmp_path, lines, prepared, FORMULAS[name])
    assert "same" in result.out and "other" not in result.out, (result.out, result.text())


def test_batch_norm_does_not_hide_the_guilty_sample(tmp_path):
    """Each sample alone among copies of another one lies far out by the statistics of that batch, and fails by
    itself."""
    got = helpers.run(
        tmp_path,
        """
import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(64, 4).abs() + 0.5
X[37] = 0.0
norm, layer = nn.BatchNorm1d(4), nn.Linear(4, 1)
opt = torch.optim.SGD([*norm.parameters(), *layer.parameters()], lr=1e-4)
for x in torch.utils.data.DataLoader(X, batch_size=32):
    level = norm(x)
    loss = torch.exp(20 * level.abs()).log1p().mean() + torch.log(x.sum(1)).mean() * layer(level).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    )
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::log" and alarm["births"][0]["rows"] == [5], got.text()
    assert "whole step, sample 5 of 32 replaced by a copy of sample 0" in [
        e["name"] for e in alarm["cause"]["experiments"]
    ], got.text()
