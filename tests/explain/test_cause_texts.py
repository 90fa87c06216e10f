"""The cause that is named is the cause, and the change that is recommended is the one that was tried."""

import pytest
import torch  # noqa: F401  its libraries

import helpers

# Three steps; at the last one `bad` is done to the batch.
SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
layer = torch.nn.Linear(6, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
low = torch.rand(24, 6)
high = low + 1 + torch.rand(24, 6)
keep = torch.ones(24, 6)
TABLE
for step, (x, low, high, keep) in enumerate(DataLoader(TensorDataset(torch.rand(24, 6) + 0.5, low, high, keep), batch_size=8)):
    if step == 2:
        BAD
    value = layer(x)
    LINES
    optimizer.zero_grad()
    loss.backward()
    GRADIENT
    optimizer.step()
"""


def run(folder, lines, bad="pass", table="", gradient="pass"):
    script = SCRIPT.replace("TABLE", table).replace("LINES", "\n    ".join(lines.strip().splitlines()))
    return helpers.run(folder, script.replace("BAD", bad).replace("GRADIENT", gradient)), script


def explained(result):
    alarm = result.the_alarm()
    assert alarm["step"] == 2, result.text()
    return alarm["births"][0], alarm["cause"], alarm["fix"] or {}


OPEN = "high[19, ::2] = float('inf')"  # no upper bound

DROPPED = {
    "where": "above = (value - high) ** 2\nloss = torch.where(value > high, above, "
    "torch.zeros_like(value)).sum(1).mean()",
    "index": "above = (value - high) ** 2\nloss = value.mean() + above[torch.isfinite(high)].mean()",
    "another power, masked_fill": "above = (value - high).abs() ** 3\nloss = above.masked_fill(value < high, 0).mean()",
}


@pytest.mark.parametrize("name", DROPPED)
def test_infinity_the_program_drops_is_not_bad_data(tmp_path, name):
    result, _ = run(tmp_path, DROPPED[name], table=OPEN)
    birth, cause, fix = explained(result)
    assert (birth["phase"], cause["class"]) == ("backward", "zero-times-infinity"), result.text()
    assert "** " in birth["source"] and "batch[2]" in cause["text"], cause["text"]
    assert fix["verified"] and "where" in fix["text"] and "sample" not in fix["text"], fix


def test_infinity_times_a_mask_is_not_bad_data(tmp_path):
    result, _ = run(tmp_path, "loss = ((value - high).pow(2) * keep).mean()", table=OPEN + "\nkeep[19, ::2] = 0")
    birth, cause, _ = explained(result)
    assert (birth["phase"], birth["op"], cause["class"]) == ("forward", "aten::mul", "zero-times-infinity"), (
        result.text()
    )


@pytest.mark.parametrize(
    "lines", ["loss = (value - high).pow(2).mean()", "loss = ((value - high).pow(2) * keep).mean()"]
)
def test_an_infinity_that_nothing_drops_is_bad_data(tmp_path, lines):
    result, _ = run(tmp_path, lines, table=OPEN + "\nkeep[18] = 0")
    birth, cause, _ = explained(result)
    assert (birth["phase"], cause["class"]) == ("data", "bad-data"), result.text()


def test_the_double_where_is_silent(tmp_path):
    lines = (
        "over = torch.where(value > high, value - high, torch.zeros_like(value))\nloss = (over "
        "** 2).sum(1).mean() + value.mean()"
    )
    run(tmp_path, lines, table=OPEN)[0].assert_silent()


FILTER = """
logits = value
if step == 2:
    logits = value.masked_fill(value < value.topk(2, -1).values[:, -1:], float("-inf"))
logp = F.log_softmax(logits, -1).gather(-1, torch.zeros(8, 1, dtype=torch.long)).squeeze(-1)
mask = torch.isfinite(logp).float()
"""
ARITHMETIC = {
    "squared": "kl = 0.5 * (logp + 2) ** 2\nloss = (kl * mask).sum() / mask.sum() + value.mean()",
    "k3": "kl = (-2 - logp).exp() - (-2 - logp) - 1\nloss = (kl * mask).sum() / mask.sum() + value.mean()",
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_filter_value_fix_is_placed_at_its_output(tmp_path, name):
    result, _ = run(tmp_path, FILTER + ARITHMETIC[name])
    birth, cause, fix = explained(result)
    assert birth["phase"] == "forward" and cause["class"] in ("zero-times-infinity", "infinity-minus-infinity"), (
        result.text()
    )
    assert "written by aten::masked_fill" in cause["text"], cause["text"]
    assert fix["verified"] and "masked_fill" in fix["text"] and "before any arithmetic" in fix["text"], fix
    assert "after any mask that is made from it" in fix["text"], fix
    assert "gather" in (tmp_path / "train.py").read_text().splitlines()[fix["line"] - 1], fix


TYPED = {  # lines, what is written, into the batch or a gradient; the line, the cause
    "an input": ("loss = (value - low).pow(2).mean()", "x[3, 0] = float('inf')", "pass", "data", "bad-data"),
    "a target": ("loss = F.mse_loss(value, low)", "low[2] = float('inf')", "pass", "data", "bad-data"),
    "before a normalisation": (
        "loss = F.batch_norm(x, None, None, training=True).mul(value).mean()",
        "x[3, 0] = float('-inf')",
        "pass",
        "data",
        "bad-data",
    ),
    "a gradient": (
        "loss = value.mean()",
        "pass",
        "if step == 2: layer.weight.grad.fill_(float('inf'))",
        "forward",
        "wrong-backward",
    ),
    "an element of one": (
        "loss = value.mean()",
        "pass",
        "if step == 2: layer.weight.grad[0, 0] = float('nan')",
        "data",
        "wrong-backward",
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_literal_bad_value_is_located_at_its_line(tmp_path, name):
    lines, bad, gradient, phase, wanted = TYPED[name]
    result, _ = run(tmp_path, lines, bad, gradient=gradient)
    birth, cause, fix = explained(result)
    assert birth["source"] == (bad if bad != "pass" else gradient), (birth, cause)
    assert cause["class"] == wanted and "data pipeline" not in fix["text"], (cause, fix)
    if wanted == "wrong-backward":
        assert "the program itself writes" in cause["text"] and "layer" not in fix["text"], cause


def test_a_mask_that_is_typed_in_is_silent(tmp_path):
    mask = "bias = torch.zeros(8, 6)\nbias[3, 1:] = float('-inf')\nloss = (F.softmax(value + bias, -1) * low).mean()"
    run(tmp_path, mask)[0].assert_silent()


def test_list_with_nan_is_not_a_data_pipeline(tmp_path):
    result, _ = run(
        tmp_path,
        "score = torch.tensor([1.0 if step < 2 or i != 5 else float('nan') for i in range(8)])\n"
        "loss = (value.mean(1) * score).mean()",
    )
    birth, cause, fix = explained(result)
    assert cause["class"] == "bad-data" and "data pipeline" not in fix["text"] and "nansum" in fix["text"], (birth, fix)


@pytest.mark.parametrize("rows", [65, 137])
def test_every_row_counts_however_many_they_are(tmp_path, rows):
    script = f"""
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(3):
        x = torch.rand(256, 8) + 0.1
        if step == 2:
            x[:{rows}] = 0
        loss = (net(x) * 1e-3 + torch.log(x.sum(1, keepdim=True))).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    alarm = helpers.run(tmp_path, script).the_alarm()
    left_out = [e for e in alarm["cause"]["experiments"] if e["name"].endswith(" removed")]
    assert left_out and left_out[0]["outcome"] == "finite" and alarm["cause"]["confidence"] == "proven", alarm["cause"]
    assert alarm["births"][0]["rows"] == list(range(rows))


def test_guilty_target_of_long_batch_is_named(tmp_path):
    script = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 20)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(3):
        lp = net(torch.randn(24, 40, 16)).log_softmax(2)
        n = torch.full((40,), 5)
        if step == 2:
            n[33] = 30
        loss = torch.nn.functional.ctc_loss(lp, torch.randint(1, 20, (int(n.sum()),)), torch.full((40,), 24), n)
        opt.zero_grad(); loss.backward(); opt.step()
    """
    alarm = helpers.run(tmp_path, script).the_alarm()
    cause, birth = alarm["cause"], alarm["births"][0]
    assert (
        "sample 33 has a target of 30 with 1 pair of equal neighbours, which takes 31 steps, for an input of 24"
        in cause["text"]
    ), cause["text"]
    assert len(birth["outputs"]) == 1 and birth["outputs"][0]["pos_inf"] == 1, birth["outputs"]
    assert [e["outcome"] for e in cause["experiments"] if "confirms" in e][:2] == ["still Inf", "still Inf"], cause[
        "experiments"
    ]


def test_saved_normalisation_statistics_are_not_reported(tmp_path):
    result, _ = run(tmp_path, "loss = (F.layer_norm(x, (6,), eps=0.0) * value).mean()", "x[3] = 1")
    birth, cause, _ = explained(result)
    assert cause["class"] == "division-by-zero" and len(birth["outputs"]) == 1, (birth, cause)


def test_the_biased_form_is_what_is_tried(tmp_path):
    script = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(3):
        returns = net(torch.randn(4))[: 1 if step == 2 else 2]
        loss = ((returns - returns.mean()) / (returns.std() + 1e-8)).pow(2).sum()
        opt.zero_grad(); loss.backward(); opt.step()
    """
    alarm = helpers.run(tmp_path, script).the_alarm()
    assert alarm["cause"]["class"] == "variance-of-one"
    fix = alarm["fix"]
    assert "correction=0" in fix["text"] and "correction=0" in fix["tried"] and "drop_last" not in fix["text"], fix
    tried = [e["name"] for e in alarm["cause"]["experiments"] if e["name"].startswith("whole step, ")]
    assert len(tried) == len(set(tried)), tried


def test_softplus_is_suggested_only_where_it_fits(tmp_path):
    for lines, named in (
        ("loss = torch.exp(value * 0 + x).mean()", False),
        ("loss = torch.log1p(torch.exp(value * 0 + x)).mean()", True),
    ):
        result, _ = run(tmp_path, lines, "x[3] = 99")
        _, cause, fix = explained(result)
        assert cause["class"] == "exp-overflow" and "clamp" in fix["text"] and "clamped" in fix["tried"], fix
        assert ("not tried here, F.softplus" in fix["text"]) == named, fix["text"]


def test_rounding_of_the_coarser_format_is_no_change(tmp_path):
    lines = (
        "a = (20 * x + 0.01 * value).half() * 32\nside = a - (20 * x).half() * 32\n"
        "loss = (side.float() + (a * keep.half()).pow(2).float()).mean()"
    )
    result, _ = run(tmp_path, lines, "keep[3] = 1", table="keep = keep / 10")
    _, cause, fix = explained(result)
    assert cause["class"] == "half-precision-overflow", result.text()
    assert fix["verified"] and "float32" in fix["tried"] and "rounding in float16" in fix["outcome"], fix


LIMITS = {  # a value that is 0 / 0 where x is 0, and its limit
    "tanh(x) / x": "1",
    "(1 - torch.cos(x)) / x ** 2": "0.5",
    "(1 - torch.cos(x)) / (x * x)": "0.5",
    "x.sin() * x / (x * x)": "1",
    "x.clamp(max=5) / x": "1",
    "torch.log1p(3 * x) / x": "3",
}


@pytest.mark.parametrize("quotient", LIMITS)
def test_a_quotient_gets_its_limit(tmp_path, quotient):
    result, _ = run(
        tmp_path, f"gain = {quotient.replace('tanh', 'torch.tanh')}\nloss = (gain * value).mean()", "x[3] = 0"
    )
    _, cause, fix = explained(result)
    assert cause["class"] == "division-by-zero" and f"tends to {LIMITS[quotient]}:" in cause["text"], (
        cause["text"],
        cause["experiments"],
    )
    assert fix["verified"] and f"its limit {LIMITS[quotient]} " in fix["tried"], fix


@pytest.mark.parametrize(
    "quotient",
    ["x.abs() / x", "(x - 1) * x / x.sum(1, keepdim=True)", "x.sum(1, keepdim=True) / (x != 0).sum(1, keepdim=True)"],
)
def test_quotient_limit_is_reported_only_where_useful(tmp_path, quotient):
    result, _ = run(
        tmp_path,
        f"gain = {quotient}\nloss = (gain * value).mean()",
        "x[3] = 0" if "abs" not in quotient else "x[3] = 0; x[4] = -1",
    )
    _, cause, fix = explained(result)
    assert cause["class"] == "division-by-zero" and "limit" not in cause["text"] + fix["text"], (cause, fix)


@pytest.mark.parametrize("mask", ["keep", "(keep > 0).float()"])
def test_a_mean_of_nothing_has_no_limit(tmp_path, mask):
    """What a mask leaves is all but constant here; how it tends to nothing decides what its mean tends to."""
    lines = (
        f"mask = {mask}\nmean = ((4 + 0.1 * torch.sin(13 * x)) * mask).sum() / mask.sum()\nloss = mean * value.mean()"
    )
    result, _ = run(tmp_path, lines, "keep[:] = 0")
    _, cause, fix = explained(result)
    assert cause["class"] == "division-by-zero" and "limit" not in cause["text"] + fix["text"], (cause, fix)
    assert fix["verified"] and "clamp" in fix["text"], fix
