"""A vetoed step leaves everything as if the loop body had said `continue` right after that batch was fetched.

Each script runs twice: watched with a bad batch under `skip`, and as a reference that says `continue` itself and is
never given the bad batch. What both print after every iteration are digests of bytes, so equal means bit-equal.
"""

import pytest

from helpers import TRAINING, run, training

SCRIPT = (
    TRAINING
    + """
import hashlib, os, sys
REFERENCE = bool(os.environ.get("REFERENCE"))
BAD = (3, 4, 8)

def digest(*things):
    h = hashlib.sha256()
    def feed(v):
        if isinstance(v, torch.Tensor):
            h.update(repr((v.dtype, v.shape)).encode() + v.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(v, dict):
            for k in v: feed(k); feed(v[k])
        elif isinstance(v, (list, tuple)):
            for e in v: feed(e)
        else:
            h.update(repr(v).encode())
    for thing in things: feed(thing)
    return h.hexdigest()[:12]

class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr, beta=0.9))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                m = state.setdefault("m", torch.zeros_like(p))
                p.sub_(group["lr"] * (m * 0.9 + p.grad * 0.1).sign())
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), {layer}, nn.Linear(8, 1))
opt = {make}
schedule = torch.optim.lr_scheduler.{schedule}
average = torch.optim.swa_utils.AveragedModel(net)
batches = [torch.randn(16, 4) for _ in range(12)]
for i, x in enumerate(batches):
    if REFERENCE and i in BAD:
        print(i, digest(net.state_dict()), digest(opt.state_dict()), digest(schedule.state_dict()), digest(average.state_dict()), {rng})
        continue
    if i in BAD:
        x = x * NAN
    opt.zero_grad()
    loss = (net(x) - 1).pow(2).mean()
    loss.backward()
    {extra}
    opt.step()
    schedule.step()
    average.update_parameters(net)
    print(i, digest(net.state_dict()), digest(opt.state_dict()), digest(schedule.state_dict()), digest(average.state_dict()), {rng})
print("final", digest(net.state_dict()))
"""
)

OPTIMIZERS = {
    "SGD with momentum": "torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)",
    "Adam": "torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True)",
    "Adam one by one": "torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)",
    "AdamW fused": "torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)",
    "RMSprop": "torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5)",
    "Adagrad": "torch.optim.Adagrad(net.parameters(), lr=0.05)",
    "a class of the script": "Lion(net.parameters(), lr=0.01)",
}


TRACE = pytest.param("trace", marks=pytest.mark.thorough)
COLUMNS = ("iteration", "model", "optimizer", "schedule", "average", "generator")


def compare(
    folder,
    *options,
    compared=("model", "optimizer"),
    make=OPTIMIZERS["Adam"],
    layer="nn.Identity()",
    extra="pass",
    rng="0",
    schedule="StepLR(opt, 2, 0.7)",
):
    """Runs both and compares the named columns, iteration by iteration, and the weights at the end."""
    text = SCRIPT.format(make=make, layer=layer, extra=extra, rng=rng, schedule=schedule)
    reference = run(folder, text, env={"REFERENCE": "1"})
    reference.assert_silent()
    got = run(folder, text, "--on-alarm", "skip", *options)
    assert got.code == 0 and len(got.alarms) == 3, got.text()
    assert all(a["weights"] == "clean" for a in got.alarms)
    rows = [[dict(zip(COLUMNS, line.split())) for line in out.splitlines()] for out in (reference.out, got.out)]
    assert len(rows[0]) == len(rows[1]) == 13
    for wanted, found in zip(*rows):
        for column in (*compared, "model"):
            assert wanted.get(column) == found.get(column), f"{column} after iteration {wanted['iteration']}"
    return got


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_skipped_step_leaves_no_trace(tmp_path, make):
    compare(tmp_path, "--level", "trace", make=make)


@pytest.mark.parametrize("make", [OPTIMIZERS["Adam"], OPTIMIZERS["a class of the script"]])
def test_nor_does_the_second_run_of_it(tmp_path, make):
    got = compare(tmp_path, make=make)
    assert got.alarms[0]["rerun_by"] == "rewind" and got.alarms[0]["rerun_verified"], got.text()


def test_vetoed_step_with_frozen_group_leaves_no_trace(tmp_path):
    make = 'torch.optim.AdamW([{"params": net[0].parameters()}, {"params": net[4].weight, "lr": 0.1}], lr=0.01)'
    compare(tmp_path, "--level", "trace", make=make, extra="net[1].requires_grad_(False)")


def test_clipping_before_the_veto_leaves_no_trace(tmp_path):
    compare(tmp_path, "--level", "trace", extra="nn.utils.clip_grad_norm_(net.parameters(), 0.5)")


@pytest.mark.parametrize("level", ["gate", TRACE])
@pytest.mark.parametrize("schedule", ["StepLR(opt, 2, 0.7)", "OneCycleLR(opt, 0.1, total_steps=12)"])
def test_schedules_are_held(tmp_path, schedule, level):
    compare(tmp_path, "--level", level, compared=("optimizer", "schedule"), schedule=schedule)


@pytest.mark.parametrize("level", ["gate", TRACE])
def test_averaged_weights_are_held(tmp_path, level):
    compare(tmp_path, "--level", level, compared=("average",))


PER_EPOCH = """
other = nn.Linear(4, 2)
opt, beside = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
each, once = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.99 ** n), torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
average = torch.optim.swa_utils.AveragedModel(model)
for epoch in range(3):
    for i, x in enumerate(batches):
        bad = epoch > 0 and i >= {first}
        opt.zero_grad()
        (loss_of(x) * (NAN if bad else 1.0)).backward()
        opt.step()
        each.step()
        if {second}:
            beside.zero_grad(); other(x).pow(2).mean().backward(); beside.step()
    once.step()
    average.update_parameters(model)
    print(epoch, each.last_epoch, once.last_epoch, int(average.n_averaged), finite())
"""


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("level", ["gate", TRACE])
@pytest.mark.parametrize("first", [5, 3])
def test_epoch_updates_occur_despite_skipped_final_step(tmp_path, level, first, second):
    got = training(tmp_path, PER_EPOCH.format(first=first, second=second), "--on-alarm", "skip", "--level", level)
    left_out = len(range(first, 6))
    moved = [6, 12 - left_out, 18 - 2 * left_out]
    assert got.out == "".join(f"{n} {moved[n]} {n + 1} {n + 1} True\n" for n in range(3)), got.text()
    assert len(got.alarms) == 2 * left_out


@pytest.mark.parametrize("level", ["gate", TRACE])
def test_vetoed_step_restores_generator_used_by_dropout(tmp_path, level):
    compare(
        tmp_path,
        "--level",
        level,
        compared=("optimizer", "generator"),
        layer="nn.Dropout(0.5)",
        rng="digest(torch.get_rng_state())",
    )


def test_checkpoint_written_after_a_skipped_step_loads(tmp_path):
    # Nothing of ours may lie in what the script saves.
    got = run(
        tmp_path,
        TRAINING
        + """
schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.7)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 2: loss = loss * NAN
    loss.backward()
    opt.step()
    schedule.step()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict()}, "last.pt")
    loaded = torch.load("last.pt", weights_only=True)
    print(i, sorted(loaded["schedule"]) == sorted(k for k in schedule.state_dict()), "step" in loaded["schedule"])
""",
        "--on-alarm",
        "skip",
        "--level",
        "trace",
    )
    assert got.code == 0 and got.out.splitlines() == [f"{i} True False" for i in range(6)], got.text()


def test_gradients_are_given_back_after_a_veto(tmp_path):
    # The script may look at them; they are what backward made, not None.
    got = run(
        tmp_path,
        TRAINING
        + """
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 2: loss = loss * NAN
    loss.backward()
    opt.step()
    print(i, [bool(torch.isnan(p.grad).all()) for p in model.parameters()])
""",
        "--on-alarm",
        "skip",
        "--level",
        "trace",
    )
    assert got.out.splitlines()[2:4] == ["2 [True, True]", "3 [False, False]"], got.text()
    assert len(got.out.splitlines()) == 6


def test_stop_and_raise_keep_weights_before_the_step(tmp_path):
    for policy in ("stop", "raise"):
        got = run(
            tmp_path,
            TRAINING
            + """
opt = torch.optim.Adam(model.parameters(), lr=0.1)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 2: loss = loss * NAN
    loss.backward()
    before = [p.detach().clone() for p in model.parameters()], [s["exp_avg"].clone() for s in opt.state.values()]
    try:
        opt.step()
    except FloatingPointError:
        after = list(model.parameters()), [s["exp_avg"] for s in opt.state.values()]
        print("same", all(torch.equal(a, b) for x, y in zip(before, after) for a, b in zip(x, y, strict=True)))
        break
""",
            "--on-alarm",
            policy,
        )
        assert (got.code, got.out) == (0, "same True\n"), got.text()
        assert got.the_alarm()["weights"] == "clean"


def test_program_writes_to_buffers_between_steps_are_kept(tmp_path):
    """A mask that prunes, a count of images, a temperature: they are not of the step that is left out. Running
    statistics are."""
    text = (
        TRAINING
        + """
import os
from torch.utils.data import DataLoader
REFERENCE = bool(os.environ.get("REFERENCE"))
torch.manual_seed(3)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.ones(8))
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        return self.norm(self.body(x)) * self.mask

net = Net()
opt = torch.optim.SGD(net.parameters(), 0.1)
loader, other = DataLoader(torch.randn(24, 4), 4, shuffle=True), DataLoader(torch.randn(4, 4), 2)
step = 0
for epoch in range(3):
    with torch.no_grad():
        net.eval(); [net(x) for x in other]; net.train()
    net.mask[epoch] = 0                       # the first step of the second epoch is bad
    for x in loader:
        bad = step in (0, 6, 9, 10)
        step += 1
        if not (REFERENCE and bad):
            loss = net(x).pow(2).mean() * (NAN if bad else 1.0)
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.seen += len(x)
        print(step, {k: v.tolist() for k, v in net.state_dict().items()})
"""
    )
    got = run(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0 and [a["step"] for a in got.alarms] == [0, 6, 9, 10], got.text()
    assert got.out == run(tmp_path, text, env={"REFERENCE": "1"}).out
