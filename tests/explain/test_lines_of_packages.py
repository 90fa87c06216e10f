"""Births in installed packages: the frame of the user's own script, and fixes that somebody can follow."""

import jsonschema
import pytest

from helpers import run
from process_support import SCHEMA

PACKAGE = """
import torch

def spread(x):
    centred = x - x.mean()
    return centred / centred.std()          # in the package
"""
TRAIN = """
import sys
sys.path.insert(0, "FOLDER")
import torch
from torch import nn
from strange import spread
torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(out, i):
    return spread(out * (0.0 if i == 3 else 1.0)).pow(2).mean()     # the user's line
for i in range(6):
    loss = loss_of(model(torch.randn(8, 4)), i)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def line_of(text, words):
    return next(n for n, line in enumerate(text.strip().splitlines(), 1) if words in line)


def explained(folder, where):
    package = folder / where
    package.mkdir(parents=True)
    (package / "strange.py").write_text(PACKAGE.strip() + "\n")
    got = run(folder, TRAIN.replace("FOLDER", str(package)))
    jsonschema.validate(got.report, SCHEMA.schema)
    return got, got.the_alarm()


def test_birth_in_package_names_user_frame_and_fix(tmp_path):
    got, alarm = explained(tmp_path, "lib/site-packages")
    birth = alarm["births"][0]
    assert birth["file"].endswith("/site-packages/strange.py") and "in the package" in birth["source"]
    own = birth["user_frame"]
    here = line_of(TRAIN, "the user's line")
    assert (own["file"], own["line"], own["function"]) == (str(tmp_path / "train.py"), here, "loss_of")
    assert "the user's line" in own["source"]
    fix = alarm["fix"]
    assert (fix["file"], fix["line"]) == (str(tmp_path / "train.py"), here), fix
    assert "one of the package strange.py (strange.py:5)" in fix["text"] and "diff" not in fix
    assert f"train.py:{here}" in got.err
    html = next(tmp_path.glob("finitude-runs/*/report.html")).read_text()
    assert f"train.py:{here}" in html


@pytest.mark.parametrize("where", ["lib", "site_packages"])
def test_users_own_module_has_no_user_frame(tmp_path, where):
    _, alarm = explained(tmp_path, where)
    birth = alarm["births"][0]
    assert birth["file"].endswith("strange.py") and birth["user_frame"] is None
    assert alarm["fix"]["file"].endswith("strange.py") and "package" not in alarm["fix"]["text"]


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
    def forward(self, x):
        return LAST
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = BLOCK, nn.Linear(8, 1)
    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=REENTRANT))        # the checkpoint
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=1e-9)
for i in range(4):
    loss = model(torch.randn(64, 8)).pow(2).mean() * 1e4
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
BLOCKS = {
    "no line of its own": "nn.Sequential(nn.Linear(8, 8), nn.RReLU())",
    "a line of its own": "Block()",
}


def checkpointed(block, last="nn.functional.rrelu(self.up(x), training=True)", reentrant=False):
    return CHECKPOINTED.replace("BLOCK", block).replace("LAST", last).replace("REENTRANT", str(reentrant))


def test_the_fix_of_the_checkpoint_keeps_it_silent(tmp_path):
    run(tmp_path, checkpointed(BLOCKS["a line of its own"], reentrant=True)).assert_silent()


def test_checkpointed_operation_is_not_located_at_backward(tmp_path):
    """A block without a line of its own: it is computed again inside of loss.backward(), which is no line to mend."""
    text = checkpointed("nn.Sequential(nn.Linear(8, 8), nn.Softmax(1), nn.LogSoftmax(1), nn.Threshold(-1e9, 0.0))")
    text = text.replace(
        "torch.randn(64, 8)", "torch.randn(64, 8) * (1e38 if i == 2 else 1.0) * (1e38 if i == 2 else 1.0)"
    )
    got = run(tmp_path, text)
    assert got.alarms and all(b["line"] != line_of(text, "loss.backward()") for b in got.alarms[0]["births"]), (
        got.text()
    )


CUT_OFF = CHECKPOINTED.replace(
    "self.block, self.head = BLOCK", "self.blocks, self.head = nn.ModuleList(BLOCKS)"
).replace(
    "return self.head(checkpoint(self.block, x, use_reentrant=REENTRANT))        # the checkpoint",
    """for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)        # the checkpoint
        return self.head(x)""",
)


@pytest.mark.parametrize("blocks", [1, 3])
def test_memory_that_a_checkpoint_does_not_write_is_torchs(tmp_path, blocks):
    """torch ends the recomputation inside of rrelu, which has not written its noise by then. What malloc gives holds
    -1.7e38 (M_PERTURB)."""
    text = CUT_OFF.replace("BLOCKS", f"nn.Sequential(nn.Linear(8, 8), nn.RReLU()) for _ in range({blocks})")
    text = "import ctypes\nctypes.CDLL(None).mallopt(-6, 1)\n" + text
    got = run(tmp_path, text)
    (alarm,) = got.alarms[:1]
    assert alarm["cause"]["class"] == "uninitialised-memory" and "ended inside of" in alarm["cause"]["text"], got.text()
    assert "bug of torch" in alarm["fix"]["text"] and alarm["fix"]["line"] == line_of(text, "# the checkpoint"), (
        got.text()
    )


INSIDE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(5):
    h = model(torch.randn(8, 4)) * torch.tensor([1.0, 1.0, 0.0 if i == 3 else 1.0])
    LINE
    loss = c.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
DIVISIONS = {
    "c = torch.corrcoef(h.T)": True,
    "c = h.T.cov() / h.abs().amax(0)": False,
}


@pytest.mark.parametrize("line, is_inside", DIVISIONS.items())
def test_a_denominator_that_is_not_in_the_line_cannot_be_clamped_there(tmp_path, line, is_inside):
    got = run(tmp_path, INSIDE.replace("LINE", line), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert alarm["births"][0]["source"] == line and alarm["cause"]["class"] == "division-by-zero", got.text()
    assert ("inside what this line calls" in alarm["fix"]["text"]) == is_inside, got.text()
    assert ("clamp the denominator" in alarm["fix"]["text"]) != is_inside, got.text()


def test_a_clamp_within_a_parametrization_of_torch_is_no_advice(tmp_path):
    text = """
    import torch
    from torch.nn.utils.parametrizations import spectral_norm
    torch.manual_seed(0)
    last = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(last.weight)
    model = spectral_norm(last)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(2):
        loss = (model(torch.randn(8, 4)) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    """
    fix = run(tmp_path, text, "--on-alarm", "stop").the_alarm()["fix"]["text"]
    assert fix.startswith("give that part of the weight small random numbers") and "clamp other" not in fix, fix
