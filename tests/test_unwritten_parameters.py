"""Parameters that nobody wrote: what they hold is whatever the memory held, and no bad checkpoint."""

import pytest

from helpers import LIMIT, run, write_script
from process_support import TORCHRUN, cold

MODEL = """
import torch
from torch import nn
import torch.nn.functional as F

def leave_behind(n):
    junk = [torch.full((n,), float("nan")) for _ in range(200)]

{model}

torch.manual_seed(0)
{made}
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 300)
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
SCALED = """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        leave_behind(300)
        self.scale = nn.Parameter(torch.empty(300))
        self.out = nn.Linear(300, 2)
    def forward(self, x):
        return self.out(x * self.scale)
"""
TO_EMPTY = """
with torch.device("meta"):
    model = nn.Sequential(nn.LayerNorm(300), nn.Linear(300, 2))
leave_behind(300)
model.to_empty(device="cpu")
model[1].reset_parameters()
"""
PROGRAMS = {
    "torch.empty": (SCALED, "model = Scaled()", "scale", "nn.Parameter(torch.empty(300))"),
    "to_empty and a module that was forgotten": ("", TO_EMPTY, "0.weight", "to_empty("),
    "a copy of it in another format": (
        "",
        "leave_behind(300)\nraw = torch.empty(300)\nmodel = nn.LayerNorm(300)\nmodel.weight = "
        "nn.Parameter(raw.double().float())",
        "weight",
        "torch.empty(300)",
    ),
}


@pytest.mark.parametrize(
    "model, made, name, source",
    [pytest.param(*PROGRAMS[name], id=name, marks=pytest.mark.thorough if "copy" in name else ()) for name in PROGRAMS],
)
def test_memory_that_nobody_wrote_is_told_with_the_line_that_made_it(tmp_path, model, made, name, source):
    got = run(tmp_path, MODEL.format(model=model, made=made))
    if got.report["outcome"] == "clean":
        pytest.skip("the memory happened to hold something finite")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (0, {"kind": "parameter", "name": name}, "damaged"), (
        got.told()
    )
    assert (alarm["cause"]["class"], alarm["cause"]["confidence"]) == ("uninitialised-memory", "proven"), alarm["cause"]
    birth = alarm["births"][0]
    assert birth["phase"] == "memory" and source in birth["source"], birth
    assert "checkpoint" not in alarm["cause"]["text"] and alarm["rerun_by"] == "restart"


@pytest.mark.parametrize(
    "made",
    [
        "model = nn.Linear(300, 2)\nwith torch.no_grad(): model.weight[1, 3] = float('nan')",
        "model = nn.Linear(300, 2)\nsaved = model.state_dict()\nsaved['weight'] = torch.zeros(2, "
        "300) / 0\nmodel.load_state_dict(saved)",
    ],
    ids=["written", "loaded"],
)
def test_what_was_written_is_corrupted_state(tmp_path, made):
    alarm = run(tmp_path, MODEL.format(model="", made=made)).the_alarm()
    assert (alarm["cause"]["class"], alarm["sink"]["name"]) == ("corrupted-state", "weight"), alarm
    assert alarm["rerun"] == "persistent" and alarm["births"][0]["line"], alarm


def test_a_second_run_that_fails_at_another_place_does_not_explain_the_first(tmp_path):
    # The first value is of a moment: the second process begins with a good one, and fails at its own.
    made = (
        "import os\nmodel = nn.Linear(300, 2)\nseen = 'MALLOC_PERTURB_' in os.environ\n"
        "with torch.no_grad():\n    model.bias[0] = 0.0 if seen else "
        "float('nan')\nmodel.register_forward_hook(lambda m, i, o: o / 0 if seen else o)"
    )
    alarm = run(tmp_path, MODEL.format(model="", made=made)).alarms[0]
    assert alarm["sink"] == {"kind": "parameter", "name": "bias"} and alarm["births"][0]["op"] != "aten::div", alarm
    assert alarm["rerun"] != "persistent" or alarm["births"][0]["phase"] == "state"


@pytest.mark.slow
def test_on_two_ranks_the_second_run_is_made_and_tells_the_line(tmp_path):
    text = MODEL.format(
        model=SCALED,
        made="import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model = nn.parallel.DistributedDataParallel(Scaled())",
    )
    write_script(tmp_path, text)
    got = cold(tmp_path, *TORCHRUN, "2", "train.py", limit=3 * LIMIT)
    assert len(got.alarms) == 2, got.told()
    for alarm in got.alarms:
        assert (alarm["cause"]["class"], alarm["rerun_by"], alarm["weights"]) == (
            "uninitialised-memory",
            "restart",
            "damaged",
        ), got.told()
    birth = got.alarms[0]["births"][0]
    assert birth["phase"] == "memory" and "nn.Parameter(torch.empty(300))" in birth["source"], birth
    assert "stopped before the optimizer" in got.err, got.err
