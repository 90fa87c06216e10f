"""What a step computed is read again after it: predictions that are counted, a hidden state that is carried on. A
second run in place begins behind that step, and needs the values."""

import pytest

from helpers import plain, run, training

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.rand(96, 6) + 0.1, torch.randint(0, 5, (96,))
x[50] = 0
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8)
net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""

COUNTED = (
    HEAD
    + """
def train():
    right = total = 0
    for i, (inputs, targets) in enumerate(loader):
        opt.zero_grad()
        inputs = inputs / inputs.norm(dim=1, keepdim=True)
        outputs = OUTPUTS
        loss = nn.functional.cross_entropy(LOGITS, targets)
        loss.backward()
        opt.step()
        _, predicted = LOGITS.nan_to_num().max(1)
        total += targets.size(0)
        right += predicted.eq(targets).sum().item()
        print(i, right, total)
train()
"""
)


@pytest.mark.parametrize(
    ("outputs", "logits"),
    [
        ("net(inputs)", "outputs"),
        ("(net(inputs), inputs.sum())", "outputs[0]"),
        ('{"logits": net(inputs), "names": ["a", "b"], "nested": (net(inputs), 1)}', 'outputs["logits"]'),
        ("[net(inputs), net(inputs)]", "outputs[1]"),
    ],
)
def test_predictions_are_counted_after_the_step(tmp_path, outputs, logits):
    script = COUNTED.replace("OUTPUTS", outputs).replace("LOGITS", logits)
    got = run(tmp_path, script, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (6, "rewind", True), alarm["rerun_text"]
    assert (alarm["births"][0]["op"], alarm["births"][0]["rows"]) == ("aten::div", [2]), got.text()
    printed, expected = got.out.splitlines(), plain(tmp_path, "train.py").out.splitlines()
    assert printed[:7] == expected[:7] and [line.split()[2] for line in printed] == [
        line.split()[2] for line in expected
    ], got.text()


CARRIED = """
import torch
from torch import nn
torch.manual_seed(0)
rnn, head = nn.LSTM(3, 8), nn.Linear(8, 3)
opt = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
text = torch.rand(80, 4, 3)
text[42, 1] = 0
def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)
def train():
    hidden = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
    for i in range(0, 75, 5):
        hidden = repackage(hidden)
        opt.zero_grad()
        out, hidden = rnn(text[i:i + 5], hidden)
        target = text[i + 1:i + 6]
        loss = ((head(out) - target) / target.norm(dim=-1, keepdim=True)).pow(2).mean()
        loss.backward()
        opt.step()
        print(i, [f"{h.sum():.6f}" for h in hidden])
train()
"""


def test_a_hidden_state_is_carried_on(tmp_path):
    got = run(tmp_path, CARRIED, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (8, "rewind", True), alarm["rerun_text"]
    assert alarm["births"][0]["op"] == "aten::div" and len(got.out.splitlines()) == 15, got.text()
    warned = run(tmp_path, CARRIED, "--on-alarm", "warn")
    assert warned.alarms[0]["rerun_by"] == "rewind" and warned.out == plain(tmp_path, "train.py").out


LARGE = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, COLUMNS)
opt = torch.optim.SGD(net.parameters(), lr=1e-6)
for step in range(6):
    opt.zero_grad()
    outputs = net(torch.rand(64, 4))
    outputs.square().mean().backward()
    opt.step()
    print(torch._C._storage_Use_Count(outputs.untyped_storage()._cdata))
"""


@pytest.mark.parametrize(("columns", "more"), [(100, 1), (16384, 0)])
def test_values_larger_than_outputs_live_no_longer(tmp_path, columns, more):
    """2 MB of outputs are held until the next step; 4 MB are not."""
    script = LARGE.replace("COLUMNS", str(columns))
    got = run(tmp_path, script)
    assert [int(line) for line in got.out.split()] == [
        int(line) + more for line in plain(tmp_path, "train.py").out.split()
    ], got.text()


def test_path_in_a_name_read_later_is_kept(tmp_path):
    """A class of Python with slots only (pathlib.Path): what it holds is in sight, and may be held."""
    got = training(
        tmp_path,
        """
        import pathlib
        for i, x in enumerate(batches):
            folder = pathlib.Path(f"part-{i}")
            opt.zero_grad()
            (loss_of(x) * (NAN if i == 3 else 1)).backward()
            opt.step()
            print(folder.name)
    """,
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("rewind", True) and got.out.split() == [
        f"part-{i}" for i in range(6)
    ], got.text()


OF_ANOTHER = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 200_000)
opt = torch.optim.SGD(model.parameters(), 1e-4)
data = [torch.rand(4, 3) + 0.5 for _ in range(6)]
data[4][2] = 0
def train():
    for x in data:
        out = model(x)                       # 3 MB: nothing keeps it
        loss = (1 / x.sum(1, keepdim=True) * out).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    return len(data)
def around(f):
    out = None
    n = f()
    return n if out is None else out
print(around(train))
"""


def test_name_read_by_an_enclosing_function_is_separate(tmp_path):
    got = run(tmp_path, OF_ANOTHER, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 0 and got.out == "6\n" and alarm["rerun_by"] == "rewind", alarm["rerun_text"]
