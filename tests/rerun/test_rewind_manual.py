"""Training without an optimizer in code that calls `finitude.watch`, where the program cannot be started again: a bad
step is run again in place, from where gradients were asked for before, and the first one is traced as it runs."""

import json
import sys
import textwrap

import pytest

import helpers

LOOP = """
import sys
import torch
torch.manual_seed(0)
import finitude
BAD = {BAD}
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
params = list(net.parameters())
momenta = [torch.zeros_like(p) for p in params]
velocity = torch.zeros(())
history = []
finitude.watch(net, on_alarm="POLICY", report="w.json")
def train():
    global velocity
    for i in range(8):
        x = torch.rand(4, 3) + 0.5
        if i in BAD:
            x[2] = 0
        loss = (1 / x.sum(1) * net(x)[:, 0]).pow(2).mean()
        UPDATE
        history.append(i)
        print(i, all(bool(t.isfinite().all()) for t in [*net.state_dict().values(), *momenta]), len(history))
train()
print([p.sum().item() for p in params], [m.sum().item() for m in momenta], velocity.item(), history, torch.rand(()).item())
"""
UPDATES = {
    "backward": "loss.backward()\nwith torch.no_grad():\n    for p in params:\n        p -= 0.1 * "
    "p.grad\n        p.grad.zero_()",
    "data": "net.zero_grad()\nloss.backward()\nfor p in params: p.data.add_(p.grad, alpha=-0.1)",
    "momentum": "grads = torch.autograd.grad(loss, params)\nwith torch.no_grad():\n    for p, m, g "
    "in zip(params, momenta, grads):\n"
    "        m.mul_(0.9).add_(g)\n        p.sub_(m, alpha=0.01)",
    "rebinds": "grads = torch.autograd.grad(loss, params)\nvelocity = velocity * 0.9 + "
    "grads[0].sum()\nwith torch.no_grad():\n"
    "    for p, g in zip(params, grads): p.copy_(p - 0.1 * g - 0.001 * velocity)",
    "foreach": "for p in params: p.grad = None\nloss.backward()\nwith torch.no_grad():\n"
    "    torch._foreach_add_(params, [p.grad for p in params], alpha=-0.1)",
}
BIRTH = "loss = (1 / x.sum(1) * net(x)[:, 0]).pow(2).mean()"


def watched(folder, text):
    (folder / "train.py").write_text(textwrap.dedent(text))
    run = helpers.plain(folder, folder / "train.py")
    return run, json.loads((folder / "w.json").read_text()) if (folder / "w.json").exists() else None


def script(update, bad=(4,), policy="skip", loop=LOOP):
    text = loop.replace("{BAD}", repr(set(bad))).replace("POLICY", policy)
    return text.replace("        UPDATE", textwrap.indent(UPDATES.get(update, update), "        "))


pytestmark = pytest.mark.usefixtures("replays")  # capsules of a second run in place are looked at


def replays(folder, alarm):
    return json.loads((folder / alarm["capsule"] / "capsule.json").read_text())["replay"]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.usefixtures("replays")
def test_a_bad_step_is_run_again_in_place(tmp_path, update):
    run, report = watched(tmp_path, script(update))
    assert run.code == 0 and "internal failure" not in run.err, run.err
    (alarm,) = report["alarms"]
    assert (alarm["step"], alarm["weights"], alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (
        4,
        "clean",
        "persistent",
        "rewind",
        True,
    ), alarm["rerun_text"]
    assert (alarm["births"][0]["source"], alarm["cause"]["class"]) == (BIRTH, "division-by-zero"), alarm
    assert run.out.count("True") == 8 and replays(tmp_path, alarm) == "identical", run.out


@pytest.mark.parametrize("update", UPDATES)
def test_a_second_run_leaves_nothing_behind(tmp_path, update):
    """Where the program drops the step itself it ends as without us, whatever its update adds up."""
    guarded = (
        UPDATES[update]
        .replace("with torch.no_grad", "if i in BAD: net.zero_grad(); continue\nwith torch.no_grad", 1)
        .replace("for p in params: p.data", "if i in BAD: continue\nfor p in params: p.data")
        .replace("velocity = vel", "if i in BAD: continue\nvelocity = vel")
    )
    run, report = watched(tmp_path, script(guarded, policy="stop"))
    bare = (
        script(guarded)
        .replace("import finitude", "")
        .replace('finitude.watch(net, on_alarm="skip", report="w.json")', "")
    )
    (tmp_path / "bare.py").write_text(bare)
    assert run.code == 0 and run.out == helpers.plain(tmp_path, tmp_path / "bare.py").out, run.err
    assert not report["alarms"] and report["watched"]["handled_by_script"] == 1
    (advisory,) = report["advisories"]
    assert advisory["births"][0]["source"] == BIRTH and advisory["cause"]["class"] == "division-by-zero", report


@pytest.mark.parametrize("update", ["backward", "momentum"])
@pytest.mark.usefixtures("replays")
def test_the_first_step_is_traced_as_it_runs(tmp_path, update):
    run, report = watched(tmp_path, script(update, bad=(0,)))
    (alarm,) = report["alarms"]
    assert (alarm["step"], alarm["rerun_by"], alarm["births"][0]["source"]) == (0, "trace", BIRTH), alarm
    assert run.code == 0 and replays(tmp_path, alarm) == "identical"


def test_several_bad_steps_are_each_run_again(tmp_path):
    run, report = watched(tmp_path, script("momentum", bad=(2, 4, 5)))
    assert [(a["step"], a["rerun_by"], a["rerun_verified"]) for a in report["alarms"]] == [
        (n, "rewind", True) for n in (2, 4, 5)
    ], report
    assert run.code == 0 and run.out.count("True") == 8


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_other_policies(tmp_path, policy):
    run, report = watched(tmp_path, script("backward", policy=policy))
    (alarm,) = report["alarms"]
    assert alarm["rerun_by"] == "rewind" and alarm["births"][0]["source"] == BIRTH
    assert alarm["weights"] == ("damaged" if policy == "warn" else "clean") and run.code == (
        1 if policy == "stop" else 0
    )


@pytest.mark.parametrize("update", UPDATES)
def test_a_healthy_program_trains_to_the_same_bits(tmp_path, update):
    run, _ = watched(tmp_path, script(update, bad=()))
    (tmp_path / "bare.py").write_text(
        script(update, bad=())
        .replace("import finitude", "")
        .replace('finitude.watch(net, on_alarm="skip", report="w.json")', "")
    )
    assert run.code == 0 and run.out == helpers.plain(tmp_path, tmp_path / "bare.py").out, run.err


GAN = """
import torch
torch.manual_seed(0)
import finitude
finitude.watch(on_alarm="skip", report="w.json")
g = torch.nn.Linear(2, 4)
d = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for i in range(6):
    z, real = torch.randn(6, 2), torch.randn(6, 4)
    loss_d = d(real).pow(2).mean() + (1 - d(g(z).detach())).pow(2).mean()
    d.zero_grad()
    loss_d.backward()
    with torch.no_grad():
        for w in d.parameters():
            w -= 0.05 * w.grad
    s = d(g(z))
    loss_g = (s / (s.detach() if i != 3 else torch.zeros_like(s))).mean()
    g.zero_grad()
    loss_g.backward()
    with torch.no_grad():
        for w in g.parameters():
            w -= 0.05 * w.grad
    print(i, all(bool(w.isfinite().all()) for w in [*g.parameters(), *d.parameters()]))
"""


def test_two_losses_of_one_iteration(tmp_path):
    run, report = watched(tmp_path, GAN)
    (alarm,) = report["alarms"]
    assert run.code == 0 and run.out.count("True") == 6 and alarm["step"] == 7, run.err
    if sys.version_info < (3, 11):  # frames of 3.10 go on where they are
        assert alarm["rerun_by"] == "none" and "called from" in alarm["rerun_text"]
        return
    assert alarm["rerun_by"] == "rewind" and alarm["births"][0]["source"].startswith("loss_g ="), alarm["rerun_text"]


REBOUND = """
import torch
torch.manual_seed(0)
import finitude
finitude.watch(on_alarm="warn", report="w.json")
w = torch.randn(4, requires_grad=True)
for i in range(7):
    x = torch.rand(5, 4)
    if i == 4:
        x[1] = 0
    loss = ((x @ w) / x.sum(1)).pow(2).mean()
    g, = torch.autograd.grad(loss, w)
    w = (w - 0.1 * g).detach().requires_grad_()
"""


def test_new_leaves_in_each_step(tmp_path):
    """Nothing is put back there, and the second run is given the gradients of the step before once more."""
    run, report = watched(tmp_path, REBOUND)
    (alarm,) = report["alarms"]
    assert run.code == 0 and (alarm["step"], alarm["rerun_by"], alarm["weights"]) == (4, "rewind", "damaged"), alarm[
        "rerun_text"
    ]
    assert alarm["births"][0]["source"].startswith("loss = "), alarm


POPS = """
import torch
import finitude
finitude.watch(on_alarm="skip", report="w.json")
w = torch.ones(3, requires_grad=True)
data = [torch.rand(3) for _ in range(5)] + [torch.zeros(3)]
while data:
    x = data.pop(0)
    loss = (w * x).sum() / x.sum()
    w.grad = None
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    print(len(data), bool(w.isfinite().all()))
"""


def test_step_that_cannot_rerun_is_reported_without_loss(tmp_path):
    run, report = watched(tmp_path, POPS)
    assert run.code == 0 and run.out == "".join(f"{n} True\n" for n in (5, 4, 3, 2, 1, 0)), run.err
    assert report["alarms"][0]["rerun_by"] == "none" and "rewind" in report["alarms"][0]["rerun_text"], report["alarms"]
