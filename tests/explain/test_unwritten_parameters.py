"""Parameters that nobody wrote: what they hold is whatever the memory held, and no bad checkpoint."""

import pytest

from helpers import run
from process_support import launched

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
def test_unwritten_memory_is_reported_with_its_allocation_line(tmp_path, model, made, name, source):
    got = run(tmp_path, MODEL.format(model=model, made=made))
    if got.report["outcome"] == "clean":
        pytest.skip("the memory happened to hold something finite")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (0, {"kind": "parameter", "name": name}, "damaged"), (
        got.text()
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


def test_rerun_failing_elsewhere_does_not_explain_the_alarm(tmp_path):
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
def test_rerun_on_two_ranks_finds_the_line(tmp_path):
    text = MODEL.format(
        model=SCALED,
        made="import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model = nn.parallel.DistributedDataParallel(Scaled())",
    )
    got = launched(tmp_path, text)
    assert len(got.alarms) == 2, got.text()
    for alarm in got.alarms:
        assert (alarm["cause"]["class"], alarm["rerun_by"], alarm["weights"]) == (
            "uninitialised-memory",
            "restart",
            "damaged",
        ), got.text()
    birth = got.alarms[0]["births"][0]
    assert birth["phase"] == "memory" and "nn.Parameter(torch.empty(300))" in birth["source"], birth
    assert "stopped before the optimizer" in got.err, got.err


FINITE = """
import ctypes, os, torch
from torch import nn

def found_in_memory(tensor, byte):
    \"\"\"What whoever had that memory before has left in it.\"\"\"
    if "MALLOC_PERTURB_" not in os.environ:
        ctypes.memset(tensor.data_ptr(), byte if {again} or once() else 0, tensor.nbytes)
    return tensor

def once():
    if os.path.exists({mark!r}):
        return False
    os.close(os.open({mark!r}, os.O_CREAT))
    return True

torch.manual_seed(0)
model = nn.Module()
model.scale = nn.Parameter({made})
model.rest = nn.Parameter({rest})
model.register_buffer("memory", {memory})
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 300)
    loss = (x * model.scale).pow({power}).mean() + {more}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
ONCE, ALWAYS = False, True  # in a second process, unless that has filled the memory
LARGE, TOO_LARGE = 0x58, 0x70  # 9.5e14, and a square that float32 does not hold
UNWRITTEN, WRITTEN = "found_in_memory(torch.empty(300), {})", "found_in_memory(torch.ones(300), {})"


def finite(folder, again, made, *options, power="2", rest="torch.zeros(1)", memory="None", more="0"):
    inside = folder / "run"
    inside.mkdir()
    about = {"rest": rest, "power": power, "memory": memory, "more": more}
    text = FINITE.format(again=again, made=made, mark=str(folder / "asked"), **about)
    return run(inside, text, *options)


def test_finite_unwritten_memory_explains_a_transient_failure(tmp_path):
    got = finite(tmp_path, ONCE, UNWRITTEN.format(TOO_LARGE), "--on-alarm", "skip")
    alarm = got.alarms[0]
    birth, cause = alarm["births"][0], alarm["cause"]
    assert (alarm["step"], alarm["rerun"], alarm["sink"]["kind"]) == (0, "transient", "loss"), got.text()
    assert (cause["class"], cause["confidence"]) == ("uninitialised-memory", "proven"), cause
    assert (birth["phase"], birth["name"]) == ("memory", "scale") and "torch.empty(300)" in birth["source"], birth
    assert birth["outputs"][0]["max"] > 1e29 and alarm["fix"]["line"] == birth["line"], alarm


def test_fully_written_inputs_are_not_blamed_on_memory(tmp_path):
    got = finite(tmp_path, ONCE, WRITTEN.format(TOO_LARGE), "--on-alarm", "skip", rest=UNWRITTEN.format(LARGE))
    alarm = got.alarms[0]
    assert (alarm["rerun"], alarm["cause"]["class"], alarm["births"]) == ("transient", "unknown", []), got.text()


READ, NOT_READ = "(x * model.memory).pow(2).mean()", "(x * model.memory.fill_(0)).mean()"


@pytest.mark.parametrize("more, cause", [(READ, "uninitialised-memory"), (NOT_READ, "unknown"), ("0", "unknown")])
def test_unwritten_buffer_is_blamed_only_where_read(tmp_path, more, cause):
    bad = UNWRITTEN.format(TOO_LARGE), WRITTEN.format(TOO_LARGE)
    memory, scale = (bad[0], "torch.ones(300)") if more == READ else (UNWRITTEN.format(LARGE), bad[1])
    got = finite(tmp_path, ONCE, scale, "--on-alarm", "skip", memory=memory, more=more)
    alarm = got.alarms[0]
    assert (alarm["rerun"], alarm["cause"]["class"]) == ("transient", cause), got.text()
    assert [birth["name"] for birth in alarm["births"]] == (["memory"] if more == READ else []), got.text()


def test_huge_initial_parameter_is_explained_by_unwritten_memory(tmp_path):
    got = finite(tmp_path, ALWAYS, UNWRITTEN.format(LARGE), power="2 if step == 0 else 4")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (1, "rewind"), got.text()
    assert (alarm["cause"]["class"], alarm["cause"]["confidence"]) == ("uninitialised-memory", "likely"), got.text()
    assert [b["op"] for b in alarm["births"][:2]] == ["aten::empty", "aten::pow"], alarm["births"]
    assert "the learning rate" not in alarm["fix"]["text"] and "torch.empty(300)" in alarm["births"][0]["source"], alarm


def test_a_huge_value_that_was_written_overflows(tmp_path):
    got = finite(tmp_path, ALWAYS, WRITTEN.format(LARGE), power="2 if step == 0 else 4")
    assert got.the_alarm()["cause"]["class"] != "uninitialised-memory", got.text()


def test_later_step_of_such_training_is_a_consequence(tmp_path):
    power = "2 if step == 0 else 4"
    got = finite(tmp_path, ONCE, UNWRITTEN.format(TOO_LARGE), "--on-alarm", "warn", power=power)
    first, then = got.alarms[:2]
    assert first["cause"]["class"] == then["cause"]["class"] == "uninitialised-memory", got.text()
    assert then["rerun"] == "persistent" and "as the alarm of step 0 reports" in then["cause"]["text"], got.text()
    assert then["fix"] == first["fix"] and then["cause"]["confidence"] == "likely", then


STATE = """
import ctypes, os, torch
torch.manual_seed(0)
net = torch.nn.Linear(40, 40)
opt = torch.optim.Adam(net.parameters())
for p in net.parameters():
    square = {made}
    if "MALLOC_PERTURB_" not in os.environ:
        ctypes.memset(square.data_ptr(), 0xC0, square.nbytes)  # -6.02
    opt.state[p] = {{"step": torch.tensor(5.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": square}}
for step in range(3):
    loss = net(torch.randn(6, 40)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "made, cause, fix",
    [
        ("torch.empty_like(p)", "uninitialised-memory", "initialise it"),
        ("torch.ones_like(p)", "corrupted-state", "look at what the program writes into exp_avg_sq"),
    ],
    ids=["unwritten", "written"],
)
def test_impossible_optimizer_state_may_be_unwritten_memory(tmp_path, made, cause, fix):
    got = run(tmp_path, STATE.format(made=made))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["cause"]["class"]) == (0, cause), got.text()
    assert alarm["fix"]["text"].startswith(fix) and "checkpoint, or" not in alarm["fix"]["text"], alarm["fix"]
    if made.startswith("torch.empty"):
        assert alarm["births"][0]["name"] == "weight.exp_avg_sq" and made in alarm["births"][0]["source"], got.text()
