"""What a program may be that has no standard error, refuses to fork, or trains with what is not finite on purpose: it
ends as without us."""

import pytest

import helpers

FROZEN = """
import torch
from torch import nn
torch.manual_seed(0)
NAN, INF = float("nan"), float("inf")

class Attention(nn.Module):
    def __init__(self, size=4, width=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mask = nn.Parameter(torch.triu(torch.full((size, size), -INF), 1), requires_grad=False)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(1, 2) / 4 + self.mask, -1) @ v)

class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, ruins=False):
        super().__init__(params, dict(lr=lr))
        self.ruins = ruins
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])
                elif self.ruins:
                    p.add_(NAN)

model = Attention()
{make}
for i in range(8):
    x = torch.randn(2, 4, 8)
    {before}
    def evaluate():
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss
    {step}
print("ended", sum(p.double().sum().item() for p in model.parameters() if p.requires_grad))
"""
STEP = "evaluate(); opt.step()"
MAKES = {
    "AdamW": "opt = torch.optim.AdamW(model.parameters(), 1e-3)",
    "AdamW, for-loop": "opt = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)",
    "AdamW, foreach": "opt = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)",
    "AdamW, fused": "opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)",
    "SGD with momentum": "opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, weight_decay=0.1)",
    "a second group": "opt = torch.optim.Adam([{'params': [p for p in model.parameters() if "
    "p.requires_grad]}, {'params': [model.mask], 'lr': 0.5}], 1e-3)",
    "a class of its own": "opt = Own(model.parameters())",
}


def _program(make, before="pass", step=STEP):
    return FROZEN.format(make=make, before=before, step=step)


@pytest.mark.parametrize("name", MAKES)
def test_frozen_infinite_parameter_is_no_result_of_step(tmp_path, name):
    got = helpers.run(tmp_path, _program(MAKES[name]), "--on-alarm", "raise")
    got.assert_silent()
    assert helpers.plain(tmp_path, "train.py").out == got.out, got.text()


SILENT = {
    "frozen later": (
        "opt = torch.optim.AdamW(model.parameters(), 1e-3)",
        STEP,
        "if i == 4: model.out.bias.requires_grad_(False); model.out.bias.grad = None; "
        "model.mask.data[0, 0] = 1; model.out.bias.data[0] = 0.0\n"
        "    if i == 5: model.mask.data[1, 0] = -INF",
    ),
    "a search along a line": (
        "opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)",
        "opt.step(evaluate)",
        "pass",
    ),
    "a closure": ("opt = torch.optim.SGD(model.parameters(), 0.1)", "opt.step(evaluate)", "pass"),
    "a group that comes later": (
        "opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)",
        STEP,
        "if i == 3: opt.add_param_group({'params': [model.mask]})",
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_nor_where(tmp_path, name):
    make, step, before = SILENT[name]
    got = helpers.run(tmp_path, _program(make, before, step), "--on-alarm", "raise")
    got.assert_silent()
    assert helpers.plain(tmp_path, "train.py").out == got.out, got.text()


def test_trained_parameter_starting_infinite_is_an_alarm(tmp_path):
    gate = (
        "model.gate = nn.Parameter(torch.tensor([INF])); opt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "model.register_forward_hook(lambda module, args, out: out * torch.sigmoid(module.gate))"
    )
    got = helpers.run(tmp_path, _program(gate), "--on-alarm", "raise")
    assert got.the_alarm()["cause"]["class"] == "corrupted-state" and got.code == 1, got.text()


def test_frozen_parameter_ruined_by_optimizer_is_an_alarm(tmp_path):
    got = helpers.run(
        tmp_path, _program("opt = Own(model.parameters(), ruins=True); model.mask.data.zero_()"), "--on-alarm", "raise"
    )
    assert got.the_alarm()["sink"] == {"kind": "parameter", "name": "mask"} and got.code == 1, got.text()


# -- no standard error -------------------------------------------------------------------------------

STREAMS = {
    "None": "sys.stderr = None",
    "closed": "sys.stderr.close()",
    "its number given to a file": "import os; os.close(2); own = open('own.txt', 'w'); assert own.fileno() == 2",
    "one that fails": "sys.stderr = type('Broken', (), {'write': lambda *_: 1 / 0, 'flush': lambda "
    "*_: None, 'closed': False})()",
    "no standard output either": "print('begun', flush=True); sys.stdout = sys.stderr = None",
}
LOOP = (
    helpers.TRAINING
    + """
import sys
{streams}
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) * (NAN if k == {bad} else 1)
    loss.backward()
    opt.step()
if sys.stdout is not None: print("ended", finite())
sys.exit(5)
"""
)


@pytest.mark.parametrize("name", STREAMS)
def test_a_program_without_standard_error(tmp_path, name):
    """Healthy; with a step that is skipped; with one that ends it."""
    got = helpers.run(tmp_path, LOOP.format(streams=STREAMS[name], bad=-1))
    plain = helpers.plain(tmp_path, "train.py")
    assert (got.code, got.out) == (plain.code, plain.out) == (5, plain.out), got.text()
    assert got.report["outcome"] == "clean" and got.watched["steps"] == 6, got.text()
    got = helpers.run(tmp_path, LOOP.format(streams=STREAMS[name], bad=3), "--on-alarm", "skip")
    assert (got.code, got.out) == (5, plain.out) and got.the_alarm()["step"] == 3 and got.the_alarm()["births"], (
        got.text()
    )
    assert not any(own.read_text() for own in tmp_path.glob("own.txt"))
    got = helpers.run(tmp_path, LOOP.format(streams=STREAMS[name], bad=3), "--on-alarm", "raise")
    assert got.code == 1 and got.the_alarm()["action"] == "stopped", got.text()


def test_program_with_stderr_on_full_disk_ends_normally(tmp_path):
    stream = "sys.stderr = open('/dev/full', 'w', buffering=1)"
    for bad in (-1, 3):
        got = helpers.run(tmp_path, LOOP.format(streams=stream, bad=bad), "--on-alarm", "skip")
        assert (got.code, got.out) == (5, "ended True\n") and len(got.alarms) == (bad > 0), got.text()


# -- a fork that is refused or interrupted -----------------------------------------------------------

REFUSES = """
import sys
def hook(event, arguments):
    if event == "os.fork": raise {error}("this program does not fork")
sys.addaudithook(hook)
"""
BAD_STEP = """
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x / (0 if k in (2, 4) else 1))
    loss.backward()
    opt.step()
print("ended", finite(), model.weight.sum().item())
"""
PLAIN = BAD_STEP.replace("    opt.step()", "    if k not in (2, 4): opt.step()")


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit", "KeyboardInterrupt"])
def test_a_program_that_does_not_fork(tmp_path, error):
    got = helpers.run(tmp_path, helpers.TRAINING + REFUSES.format(error=error) + BAD_STEP, "--on-alarm", "skip")
    helpers.write_script(tmp_path, helpers.TRAINING + PLAIN, "plain.py")
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "plain.py").out), got.text()
    assert [(a["step"], a["rerun"], a["births"][0]["op"]) for a in got.alarms] == [
        (2, "persistent", "aten::div"),
        (4, "persistent", "aten::div"),
    ], got.text()


CTRL_C = """
import os, signal
def come():
    global left
    if left: left -= 1; os.kill(os.getpid(), signal.SIGINT)
left = 1
os.register_at_fork({when}=come)
"""


@pytest.mark.parametrize("when", ["before", "after_in_parent"])
def test_ctrl_c_during_fork_leaves_no_process(tmp_path, when):
    text = (
        helpers.TRAINING
        + CTRL_C.format(when=when)
        + """
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x / (0 if k in (2, 4) else 1))
    loss.backward()
    try:
        opt.step()
    except KeyboardInterrupt:
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        print("heard at", k, "processes left", len(children))
print("ended", finite())
"""
    )
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "heard at 2 processes left 0\nended True\n"), got.text()
    assert [a["step"] for a in got.alarms] == [2, 4] and got.alarms[1]["births"], got.text()


# -- what listens to every call on a tensor ----------------------------------------------------------

LISTENS = """
import collections
import torch
from torch.overrides import TorchFunctionMode
heard = collections.Counter()
class Listens(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        heard[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))
torch.manual_seed(0)
with Listens():
    model = torch.nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), 0.1)
    for k in range(6):
        loss = (model(torch.rand(8, 4)) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
print(sorted(heard.items()))
"""


def test_programs_own_mode_sees_no_calls_of_ours(tmp_path):
    got = helpers.run(tmp_path, LISTENS)
    assert got.out == helpers.plain(tmp_path, "train.py").out and "__get__" in got.out, got.text()
    assert got.watched["steps"] == 6, got.text()


# -- objects whose target is gone, or does not want to be asked ---------------------------------------

PROXIES = """
import weakref
class Other: pass
class Late:
    @property
    def __class__(self): raise RuntimeError("asked too early")
{held}
"""


@pytest.mark.parametrize(
    ("held", "by"),
    [
        ("one = weakref.proxy(Other())", "rewind"),
        ("many = [weakref.proxy(Other()), dict(one=weakref.proxy(Other()))]", "rewind"),
        ("model.__dict__['one'] = weakref.proxy(Other())", "rewind"),
        ("one = Late(); many = [one, (one,)]", "rewind"),
    ],
)
def test_object_whose_target_is_gone_costs_no_explanation(tmp_path, held, by):
    got = helpers.training(tmp_path, PROXIES.format(held=held) + BAD_STEP, "--on-alarm", "skip")
    assert got.code == 0 and not got.report["failures"], got.text()
    found = [(a["step"], a["rerun_by"], a["births"][0]["op"]) for a in got.alarms]
    assert found == [(2, by, "aten::div"), (4, by, "aten::div")], got.text()


# A lazy object of the program makes what it is to be once it is asked what it is; this one says that it is a tensor.
LAZY = """
asked = []
class Lazy:
    @property
    def __class__(self):
        asked.append(1)
        return torch.Tensor
one = Lazy(); many = [one, (one,), dict(one=one)]
class Data(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, k): return batches[k], Lazy()
model.__dict__["one"] = one
for p in model.parameters(): opt.state[p]["one"] = Lazy()
for k, (x, late) in enumerate(torch.utils.data.DataLoader(Data(), batch_size=None, collate_fn=lambda it: it)):
    opt.zero_grad()
    loss = loss_of(x / (0 if k in (2, 4) else 1))
    loss.backward()
    opt.step()
print(len(asked))
"""


@pytest.mark.parametrize("level", ["gate", "tape", "trace"])
def test_a_lazy_object_is_not_asked_what_it_is(tmp_path, level):
    got = helpers.training(tmp_path, LAZY, "--on-alarm", "skip", "--level", level)
    assert got.out == helpers.plain(tmp_path, "train.py").out == "0\n", got.text()
    assert got.code == 0 and not got.report["failures"], got.text()
    assert [(a["step"], a["births"][0]["op"]) for a in got.alarms] == [(2, "aten::div"), (4, "aten::div")], got.text()


# -- no descriptor is left ---------------------------------------------------------------------------

NO_DESCRIPTORS = """
import os, resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
for k, x in enumerate(batches):
    taken = []
    while k == {bad} and len(taken) < 200:
        try: taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError: break
    for _ in range({left} if taken else 0): os.close(taken.pop())
    opt.zero_grad()
    loss = loss_of(x / (0 if k == {bad} else 1))
    loss.backward()
    opt.step()
    for one in taken: os.close(one)
    print(k, finite(), flush=True)
"""


@pytest.mark.parametrize("left", [0, 1])
def test_output_of_second_run_is_dropped_without_descriptors(tmp_path, left):
    got = helpers.training(tmp_path, NO_DESCRIPTORS.format(bad=3, left=left), "--on-alarm", "skip")
    assert (got.code, got.out) == (0, "".join(f"{k} True\n" for k in range(6))), got.text()
