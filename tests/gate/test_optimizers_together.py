"""Optimizers that share parameters, a scaler or a process group, and compiled steps."""

import re
import subprocess

import pytest
import torch

from helpers import TRAINING, environment, plain, python_of_ranks, run, without_closing_line, write_script
from optimizer_support import BAD, BATCHES, NAN, Dense, digest, watching


@pytest.fixture
def quick(few_objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def shared(bad=(), skipped=(), clip=None, parts=lambda p: (p, p)):
    """Two optimizers over the parameters that `parts` gives them, stepped after one backward."""
    net = Dense()
    params = list(net.parameters())
    one, two = parts(params)
    optimizers = torch.optim.SGD(one, lr=0.01, momentum=0.9), torch.optim.Adam(two, lr=0.01)
    digests = []
    for i in range(BATCHES):
        if i not in skipped:
            for o in optimizers:
                o.zero_grad()
            ((net(i) - 1).pow(2).mean() * (NAN if i in bad else 1)).backward()
            if clip:
                clip(params)
            for o in optimizers:
                o.step()
        digests.append([digest(o, params) for o in optimizers])
    return digests


def halve(params):
    torch.nn.utils.clip_grad_value_(params, 0.01)


def norm(params):
    torch.nn.utils.clip_grad_norm_(params, 0.01)


@pytest.mark.usefixtures("quick")
def test_late_optimizer_counts_no_earlier_micro_batches():
    """A discriminator that begins after a while: until then its parameters have no gradients."""
    net, late = Dense(), torch.nn.Linear(2, 2)
    with watching() as watch:
        one, two = torch.optim.SGD(net.parameters(), lr=0.01), torch.optim.Adam(late.parameters(), lr=0.01)
        for i in range(BATCHES):
            one.zero_grad()
            ((net(i) - 1).pow(2).mean() * (NAN if i == 3 else 1)).backward()
            one.step()
            if i >= 5:
                two.zero_grad()
                (late(torch.ones(1, 2)).sum() * (NAN if i == 5 else 1)).backward()
                two.step()
        assert [(a["step"], a["optimizer"], a["micro_batch"]) for a in watch.alarms] == [(3, "SGD", 0), (0, "Adam", 0)]


@pytest.mark.usefixtures("quick")
def test_damage_by_other_optimizer_is_not_bad_checkpoint():
    """A training in two parts, each with an optimizer of its own."""
    net = Dense()
    with watching(on_alarm="warn") as watch:
        for kind in (torch.optim.SGD, torch.optim.Adam):
            optimizer = kind(net.parameters(), lr=0.01)
            for i in range(3):
                optimizer.zero_grad()
                ((net(i) - 1).pow(2).mean() * (NAN if i == 1 else 1)).backward()
                optimizer.step()
        (at_start,) = [a for a in watch.alarms if a["cause"]["class"] == "corrupted-state"]
        assert (at_start["step"], at_start["optimizer"]) == (0, "Adam")
        assert (
            "before the first step of Adam: step 1 of SGD, which was bad, has been applied before"
            in at_start["cause"]["text"]
        )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clip", [None, halve, norm])
@pytest.mark.parametrize("parts", [lambda p: (p, p), lambda p: (p[:3], p[1:])], ids=["all", "some"])
def test_parameter_in_two_optimizers_is_protected_from_both(parts, clip):
    plain, reference = shared(clip=clip, parts=parts), shared(skipped=BAD, clip=clip, parts=parts)
    with watching() as watch:
        assert shared(clip=clip, parts=parts) == plain and not watch.alarms and not watch.report()["advisories"]
    with watching() as watch:
        assert shared(bad=BAD, clip=clip, parts=parts) == reference
        assert [(a["step"], a["optimizer"]) for a in watch.alarms] == [(i, o) for i in BAD for o in ("SGD", "Adam")]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("last", ["SGD", "Adam"])
def test_clamping_hides_a_bad_gradient_from_neither(last):
    # Infinite before it is clamped to a finite value: both have to know, whichever was made last.
    params = [torch.nn.Parameter(torch.ones(3))]
    made = [
        getattr(torch.optim, name)(params, lr=0.1) for name in (("Adam", "SGD") if last == "SGD" else ("SGD", "Adam"))
    ]
    with watching() as watch:
        for i in range(3):
            for o in made:
                o.zero_grad()
            (params[0] * (float("inf") if i == 1 else 1)).backward(torch.ones(3))
            torch.nn.utils.clip_grad_value_(params, 1.0)
            before = params[0].detach().clone()
            for o in made:
                o.step()
            assert torch.equal(before, params[0]) == (i == 1)
        assert len(watch.alarms) == 2, watch.alarms


def scaled(bad=(), skipped=(), foreach=None):
    """One GradScaler on the CPU with two optimizers."""
    net = Dense()
    groups = list(net.a.parameters()), list(net.b.parameters())
    optimizers = torch.optim.SGD(groups[0], lr=0.01, momentum=0.9), torch.optim.AdamW(groups[1], lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    digests = []
    for i in range(BATCHES):
        if i not in skipped:
            for o in optimizers:
                o.zero_grad()
            scaler.scale((net(i) - 1).pow(2).mean() * (NAN if i in bad else 1)).backward()
            scaler.unscale_(optimizers[0])
            torch.nn.utils.clip_grad_norm_(groups[0], 1.0)
            for o in optimizers:
                scaler.step(o)
            scaler.update()
        digests.append(
            [digest(o, g) for o, g in zip(optimizers, groups)] + [scaler.get_scale(), scaler._get_growth_tracker()]
        )
    return digests


@pytest.mark.usefixtures("quick")
def test_scaler_with_two_optimizers_is_unchanged():
    plain, reference = scaled(), scaled(skipped=BAD)
    with watching() as watch:
        assert scaled() == plain and not watch.alarms
    with watching() as watch:
        assert scaled(bad=BAD) == reference
        assert [(a["step"], a["optimizer"], a["sink"]["kind"]) for a in watch.alarms] == [
            (i, "SGD", "loss") for i in BAD
        ]


SHARDED = """
import hashlib, os, sys, time
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
import torch.distributed as dist
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=rank, world_size=world)
REFERENCE, BAD = bool(os.environ.get("REFERENCE")), {bad}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
model = nn.parallel.DistributedDataParallel(net)
opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
for i, x in enumerate([torch.randn(8, 4) for _ in range(7)]):
    if REFERENCE and i in BAD: continue
    opt.zero_grad()
    ((model(x + rank) - 1).pow(2).mean() * (float("nan") if i in BAD else 1)).backward()
    opt.step()
    schedule.step()
    if i in BAD: continue
    out = [p.detach().numpy().tobytes() for p in net.parameters()]
    out += [(k, v.numpy().tobytes()) for s in opt.optim.state.values() for k, v in s.items()]
    out += [g["lr"] for o in (opt, opt.optim) for g in o.param_groups]
    print(i, hashlib.sha256(repr(out).encode()).hexdigest())
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""


def test_a_sharded_optimizer_alone(tmp_path):
    text, env = SHARDED.format(bad="(0, 3)"), {"RANK": "0", "WORLD_SIZE": "1"}
    reference = run(tmp_path, text, env={**env, "REFERENCE": "1"})
    reference.assert_silent()
    assert reference.watched["steps"] == 5, "the optimizer that it holds is not counted besides"
    (tmp_path / "meet").unlink(missing_ok=True)
    got = run(tmp_path, text, "--on-alarm", "skip", "--level", "trace", env=env)
    assert (got.code, got.out) == (0, reference.out), got.text()
    assert [(a["step"], a["optimizer"]) for a in got.alarms] == [(i, "ZeroRedundancyOptimizer") for i in (0, 3)]
    assert not got.advisories()


def _ranks(folder, text, *options, **env):
    """The same program as two ranks on this machine: exit codes and what each printed."""
    write_script(folder, text)
    (folder / "meet").unlink(missing_ok=True)
    started = [
        subprocess.Popen(
            [*python_of_ranks(), "-m", "finitude", "run", *options, "train.py"],
            cwd=folder,
            text=True,
            env={**environment(env), "RANK": str(rank), "WORLD_SIZE": "2"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        said = [p.communicate(timeout=120) for p in started]
    finally:
        for p in started:
            p.kill()
    return [p.returncode for p in started], [out for out, _ in said], [err for _, err in said]


@pytest.mark.slow
def test_a_sharded_optimizer_on_two_ranks(tmp_path):
    reference = _ranks(tmp_path, SHARDED.format(bad="(0, 3)"), REFERENCE="1")
    assert reference[0] == [0, 0] and len(reference[1][0].splitlines()) == 5, reference
    got = _ranks(tmp_path, SHARDED.format(bad="(0, 3)"), "--on-alarm", "skip", "--level", "trace")
    assert got[0] == [0, 0] and got[1] == reference[1], got
    assert all("ZeroRedundancyOptimizer" in err or "2 alarms" in err or "loss is NaN" in err for err in got[2]), got[2]


COMPILED = (
    TRAINING
    + """
import hashlib, os
REFERENCE, BAD = bool(os.environ.get("REFERENCE")), {bad}
opt = torch.optim.{make}
step = torch.compile(opt.step, backend="{backend}", fullgraph={fullgraph})
def show(v):
    return v.numpy().tobytes() if torch.is_tensor(v) else [(k, show(v[k])) for k in v] if isinstance(v, dict) else repr(v)
for i, x in enumerate(batches * 2):
    if REFERENCE and i in BAD: continue
    opt.zero_grad()
    (loss_of(x) * (NAN if i in BAD else 1)).backward()
    step()
    if i not in BAD: print(i, hashlib.sha256(repr((show(model.state_dict()), show(opt.state_dict()))).encode()).hexdigest())
"""
)


def words(err):
    """What was said on stderr, without times and process numbers."""
    return re.sub(r"^([A-Z]\d{4}) [\d:.]+ \d+", r"\1", err, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "make"),
    [
        ("eager", "Adam(model.parameters(), lr=0.01)"),
        pytest.param("eager", "SGD(model.parameters(), lr=0.1, momentum=0.9)", marks=pytest.mark.thorough),
        pytest.param("inductor", "SGD(model.parameters(), lr=0.1, momentum=0.9)", marks=pytest.mark.thorough),
        pytest.param("inductor", "Adam(model.parameters(), lr=0.01)", marks=pytest.mark.thorough),
    ],
)
def test_compiled_bad_step_is_skipped(tmp_path, backend, make):
    bad = "(0, 5, 6)"
    text = COMPILED.format(make=make, backend=backend, bad=bad, fullgraph=False)
    write_script(tmp_path, text)
    own = {"cold": backend == "inductor", "limit": 240}
    plainly = plain(tmp_path, "train.py", env={"REFERENCE": "1"}, **own)
    reference = run(tmp_path, text, env={"REFERENCE": "1"}, **own)
    reference.assert_silent()
    # With a break of the graph the compiler may fuse otherwise, and round otherwise: only op by op the bits are the
    # same.
    assert words(without_closing_line(reference.err)) == words(plainly.err)
    assert backend != "eager" or plainly.out == reference.out
    got = run(tmp_path, text, "--on-alarm", "skip", **own)
    assert (got.code, got.out) == (0, reference.out), got.text()
    assert [(a["step"], a["weights"]) for a in got.alarms] == [(i, "clean") for i in (0, 5, 6)]


PLAIN = """
class Plain(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.1))
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.1)
"""


@pytest.mark.slow
def test_fullgraph_compiled_step_runs_as_unwatched(tmp_path):
    # (Those of torch.optim break the graph themselves.)
    text = COMPILED.format(make="Plain(model.parameters())", backend="eager", bad="()", fullgraph=True)
    text = text.replace("opt = torch.optim.Plain", PLAIN + "opt = Plain")
    write_script(tmp_path, text)
    unwatched = plain(tmp_path, "train.py")
    got = run(tmp_path, text)
    assert (got.code, got.out, unwatched.code) == (0, unwatched.out, 0), got.text()
    assert words(without_closing_line(got.err)) == words(unwatched.err)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("same", [True, False], ids=["same parameters", "parameters that are gone"])
@pytest.mark.parametrize("with_scaler", [True, False], ids=["scaler", "plain"])
def test_optimizer_made_after_a_bad_step_is_not_left_out(same, with_scaler):
    # One optimizer waits for its turn, so that losses are kept. The others come and go: each has one bad step.
    def train():
        idle = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
        kept = torch.nn.Linear(4, 1)
        applied = []
        for turn in range(6):
            net = kept if same else torch.nn.Linear(4, 1)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=with_scaler)
            for i in range(3):
                opt.zero_grad()
                scaler.scale(net(torch.ones(2, 4)).sum() * (NAN if i == 1 else 1)).backward()
                if with_scaler:
                    scaler.unscale_(opt)
                before = net.weight.detach().clone()
                scaler.step(opt)
                scaler.update()
                applied.append(not torch.equal(before, net.weight))
            del net, opt  # the next ones may lie at their addresses
        return applied, idle

    with watching() as watch:
        assert train()[0] == [True, False, True] * 6
        assert [a["step"] for a in watch.alarms] == [1] * 6


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", ["after backward", "clipping raised", "weights reloaded", "before backward"])
def test_restart_with_another_optimizer_is_no_alarm(way):
    def train():
        torch.manual_seed(0)
        idle = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)  # losses are kept for it
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        applied = 0
        for i in range(8):
            opt.zero_grad()
            loss = net(torch.randn(3, 4)).pow(2).sum() * (NAN if i in (2, 5) else 1)
            is_bad = not torch.isfinite(loss)
            if way != "before backward" or not is_bad:
                loss.backward()
            if way == "clipping raised":
                try:
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0, error_if_nonfinite=True)
                except RuntimeError:
                    opt = torch.optim.AdamW(net.parameters(), lr=0.05)
                    continue
            elif is_bad:
                if way == "weights reloaded":
                    kept = {name: value.clone() for name, value in net.state_dict().items()}
                    net = torch.nn.Linear(4, 1)
                    net.load_state_dict(kept)
                opt = torch.optim.SGD(net.parameters(), lr=0.05)
                continue
            before = net.weight.detach().clone()
            opt.step()
            applied += not torch.equal(before, net.weight)
        return applied, net.weight.detach().clone(), idle

    expected = train()
    with watching() as watch:
        applied, weight, _ = train()
        assert not watch.alarms
    assert applied == expected[0] == 6 and torch.equal(weight, expected[1])
