"""Sentences of reports that were false or no help: rows that are no samples, what hid an infinity, growth of the loss
scale alone, and advice that cannot work in the case."""

import pytest

import helpers

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(5, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""

# Row 3 of something with as many rows as the batch has samples: a weight for each class, of the loss, for each
# position, and parameters that no module and not this optimizer holds.
NO_SAMPLES = {
    "class weights": """
counts = torch.tensor([3., 4, 1, 0, 6, 2, 1, 1])
for step in range(3):
    x, y = torch.randn(8, 5), torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy(net(x) * torch.log(counts / counts.sum()), y)
""",
    "of the loss": """
positive = torch.tensor([3., 4, 1, 0, 6, 2, 1, 1])
for step in range(3):
    x, y = torch.randn(8, 5), torch.randint(0, 2, (8, 8)).float()
    loss = nn.BCEWithLogitsLoss(pos_weight=8 / positive)(net(x), y)
""",
    "positions": """
for step in range(3):
    x = torch.randn(8, 8, 5)
    bias = torch.log((torch.arange(8) - 3.0).abs())[None, :, None]
    loss = (net(x) + 0.01 * bias).softmax(-1).pow(2).mean()
""",
    "in a list": """
tables = [nn.Parameter(torch.rand(8, 5) + 0.1), nn.Parameter(torch.rand(8, 5) + 0.1)]
tables[1].data[3] = 0
late = torch.optim.SGD(tables, lr=0.1)
for step in range(3):
    x = torch.randn(8, 5)
    loss = (net(x) * (x @ (tables[1] / tables[1].norm(dim=1, keepdim=True)).t())).mean()
""",
    "of no optimizer": """
users = nn.Parameter(torch.rand(8) + 0.1)
users.data[3] = 0
for step in range(3):
    loss = ((users.log() + net(torch.randn(8, 5)).sum(1)) ** 2).mean()
""",
}
STEP = """
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize("level", ["gate", "tape"])
@pytest.mark.parametrize("name", NO_SAMPLES)
def test_rows_of_tables_are_not_samples(tmp_path, name, level):
    result = helpers.run(tmp_path, HEAD + NO_SAMPLES[name] + STEP, "--level", level)
    birth = result.the_alarm()["births"][0]
    assert birth.get("rows_in") != "batch" and "rows_of" not in birth, result.text()
    assert "of the batch" not in result.err and "sample 3" not in result.err, result.text()
    if name == "in a list":
        assert "the weight tables[1] is divided by its own norm" in result.the_alarm()["cause"]["text"]


def test_a_sample_next_to_a_table_is_one(tmp_path):
    body = """
table = torch.rand(8)
for step in range(3):
    x = torch.rand(8, 5)
    if step == 2:
        x[6] = 0
    loss = (net(x / x.sum(1, keepdim=True)) * table).pow(2).mean()
"""
    result = helpers.run(tmp_path, HEAD + body + STEP)
    birth = result.the_alarm()["births"][0]
    assert (birth["rows"], birth["rows_in"]) == ([6], "batch"), result.text()
    assert "at sample 6 of the batch" in result.the_alarm()["cause"]["text"]


CHAIN = """
import torch
from torch import nn
torch.manual_seed(0)
emit, trans = nn.Linear(5, 3), nn.Parameter(torch.randn(3, 3))
allowed = torch.ones(3, 3, dtype=torch.bool)
allowed[:, 2] = False
opt = torch.optim.SGD([*emit.parameters(), trans], lr=0.1)
for step in range(2):
    e = emit(torch.randn(4, 3, 5))
    alpha = e[:, 0]
    for t in range(1, 3):
        alpha = torch.logsumexp(alpha.unsqueeze(2) + trans.masked_fill(~allowed, -torch.inf), dim=1) + e[:, t]
    (torch.logsumexp(alpha, 1).mean() - e.mean()).backward()
    opt.step()
"""


def test_a_part_of_logsumexp_hides_nothing(tmp_path):
    alarm = helpers.run(tmp_path, CHAIN).the_alarm()
    text = alarm["cause"]["text"]
    assert alarm["cause"]["class"] == "fully-masked-softmax"
    assert "the branch that was not taken" not in text, text
    assert "aten::logsumexp at train.py:13 takes it in and gives finite values" in text, text


def test_growth_of_the_loss_scale_is_no_onset(tmp_path):
    body = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(6, 1).half()
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
x, y, scale = torch.randn(16, 6).half(), torch.randn(16, 1).half(), 128.0
for step in range(16):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    (loss.float() * scale).backward()
    for p in net.parameters():
        p.grad.div_(scale)
    opt.step()
    scale *= 2
"""
    alarm = helpers.run(tmp_path, body).the_alarm()
    assert alarm["cause"]["class"] == "loss-scale-misuse"
    assert alarm["onset"] is None and "onsets" not in alarm["cause"], alarm
    assert "constant" not in alarm["cause"]["text"], alarm["cause"]["text"]


@pytest.mark.parametrize("values", ["-torch.inf", "[torch.inf, -torch.inf]"])
def test_infinities_of_a_batch_are_the_ones_replaced(tmp_path, values):
    body = f"""
data = torch.rand(24, 5)
for step in range(3):
    if step == 2:
        data[19, {"2" if values[0] == "-" else "2:4"}] = torch.tensor({values})
    loss = net(data[8 * step:8 * step + 8]).pow(2).mean()
"""
    alarm = helpers.run(tmp_path, HEAD + body + STEP).the_alarm()
    assert alarm["cause"]["class"] == "bad-data", alarm["cause"]
    assert alarm["fix"]["verified"], alarm["fix"]


def test_lbfgs_that_leaves_the_domain_is_advised_shorter_steps(tmp_path):
    body = """
import torch
torch.manual_seed(0)
x = torch.rand(40, 3) + 0.5
y = (x @ torch.tensor([1., 2., 0.5])).log()
w = torch.ones(3, requires_grad=True)
opt = torch.optim.LBFGS([w], lr=6.0, max_iter=10)

def closure():
    opt.zero_grad()
    loss = ((x @ w).log() - y).pow(2).mean()
    loss.backward()
    return loss

for step in range(2):
    opt.step(closure)
"""
    alarm = helpers.run(tmp_path, body).the_alarm()
    assert "line search" not in alarm["text"], alarm["text"]
    assert "within the same step it was finite" in alarm["cause"]["text"], alarm["cause"]["text"]
    assert alarm["fix"]["text"].startswith("shorter steps of the optimizer: a smaller lr"), alarm["fix"]


def test_a_power_iteration_of_a_zero_weight_names_the_weight(tmp_path):
    body = """
w, u = nn.Parameter(torch.zeros(8, 8)), torch.ones(8)
opt.add_param_group({"params": [w]})
for step in range(2):
    v = w.detach().t() @ u
    v = v / v.norm()
    loss = (net(torch.randn(4, 5)) @ (w / (u @ w @ v))).mean()
"""
    alarm = helpers.run(tmp_path, HEAD + body + STEP).the_alarm()
    assert "the weight w, which is all zero" in alarm["cause"]["text"], alarm["cause"]["text"]
    assert "small random numbers" in alarm["fix"]["text"], alarm["fix"]


def test_lengths_in_a_list_are_not_said_to_be_tried(tmp_path):
    body = """
data, targets, lengths = torch.randn(12, 12, 5), torch.randint(1, 8, (12, 4)), torch.full((12,), 12)
lengths[6] = 3
for i in range(0, 12, 4):
    log_probs = net(data[i:i + 4]).log_softmax(-1).transpose(0, 1)
    loss = nn.functional.ctc_loss(log_probs, targets[i:i + 4], lengths[i:i + 4], torch.full((4,), 4))
"""
    alarm = helpers.run(tmp_path, HEAD + body + STEP).the_alarm()
    assert alarm["cause"]["text"].count("sample 2") == 1, alarm["cause"]["text"]
    tried = [e["outcome"] for e in alarm["cause"]["experiments"] if "rows of an input replaced" in e["name"]]
    assert tried and "the numbers that it takes in a list, one for each sample, stayed as they were" in tried[0], tried
