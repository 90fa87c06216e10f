"""Parameters, and averages of them, that the program itself writes after a step: a second run in place writes them once
more, but reads them as the first run did. The weights are as they were when the step was stopped."""

import pytest

import helpers

# Weights that the program shrinks after each step; the loss alone, or all gradients, or one of them turn bad at step 4.
DECAYED = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
def weights():
    return [round(float(p.sum()), 7) for p in net.parameters()]
for k, x in enumerate(torch.rand(8, 6, 5)):
    loss = (net(x).abs() + 1).log().mean()
    if k == 4:
        loss = loss + BAD  # birth
    opt.zero_grad()
    loss.backward()
    print(k, weights())
    try:
        opt.step()
    except FloatingPointError:
        print("stopped", weights())
        raise
    with torch.no_grad():
        for p in net.parameters():
            p.SHRINK
"""
WHOLE = "(x.sum() * 0).log() * net.weight.sum()"
ONE = "((net.weight[0, 0] * 0).sqrt() + net.weight[0, :2].sum() * 3)"
LOSS_ALONE = "(x.sum() * 0).log().detach()"
BY_HAND = "mul_(0.5)"


def _run(tmp_path, bad, *options, shrink=BY_HAND):
    return helpers.run(tmp_path, DECAYED.replace("BAD", bad).replace("SHRINK", shrink), *options)


@pytest.mark.fast
@pytest.mark.parametrize("bad", [WHOLE, ONE], ids=["all NaN", "one gradient"])
@pytest.mark.parametrize("shrink", [BY_HAND, "data.mul_(0.5)"], ids=["in place", "data"])
def test_stopped_step_leaves_the_weights_unchanged(tmp_path, bad, shrink):
    got = _run(tmp_path, bad, shrink=shrink)
    alarm = got.the_alarm()
    before, stopped = got.out.splitlines()[-2:]
    assert before.split(" ", 1)[1] == stopped.split(" ", 1)[1], got.out
    assert (alarm["weights"], alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (
        "clean",
        "persistent",
        "rewind",
        True,
    ), got.text()
    assert "what it writes between two steps held" in alarm["rerun_text"], alarm["rerun_text"]


def test_weights_in_other_memory_after_each_step_are_not_held(tmp_path):
    got = _run(tmp_path, WHOLE, shrink="data = p.data * 0.5")
    alarm = got.the_alarm()
    assert (alarm["weights"], alarm["rerun_by"], alarm["rerun_verified"]) == ("clean", "restart", True), got.text()


@pytest.mark.fast
def test_continuing_program_uses_weights_of_the_first_run(tmp_path):
    got = _run(tmp_path, WHOLE, "--on-alarm", "skip")
    own = (
        DECAYED.replace("BAD", WHOLE).replace("SHRINK", BY_HAND).replace("opt.step()", "opt.step() if k != 4 else None")
    )
    helpers.write_script(tmp_path, own, "own.py")
    assert got.out == helpers.plain(tmp_path, "own.py").out, got.text()


@pytest.mark.fast
@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_a_harmless_loss_changes_nothing(tmp_path, policy):
    got = _run(tmp_path, LOSS_ALONE, "--on-alarm", policy)
    assert got.code == 0 and got.the_alarm()["harmless"], got.text()
    assert got.out == helpers.plain(tmp_path, "train.py").out


@pytest.mark.fast
def test_writing_the_same_once_more_is_no_obstacle(tmp_path):
    got = _run(tmp_path, WHOLE, shrink="clamp_(-0.2, 0.2)")
    alarm = got.the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["weights"]) == ("persistent", "rewind", "clean"), got.text()


# A teacher: an average of the weights, which the program writes after each step and the next one reads.
AVERAGED = """
import copy
import torch
torch.manual_seed(0)
net = torch.nn.Linear(5, 3)
teacher = copy.deepcopy(net)
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
x = torch.rand(48, 5)
x[35] = 0
for k, (x,) in enumerate(LOADER):
    with torch.no_grad():
        wanted = teacher(x)
    loss = ((net(x) - wanted) ** 2 / x.norm(dim=1, keepdim=True)).mean()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for mean, p in zip(teacher.parameters(), net.parameters()):
            MEAN
    print(k, float(teacher.weight.sum()), float(net.weight.sum()))
"""
IN_PLACE = "mean.mul_(0.9).add_(p, alpha=0.1)"


@pytest.mark.parametrize(
    "loader, mean",
    [
        ("torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 8)", IN_PLACE),
        ("((part,) for part in [*x.split(8)])", "mean.data.copy_(0.9 * mean.data + 0.1 * p.data)"),
    ],
    ids=["DataLoader", "plain loop, data"],
)
def test_average_that_is_written_after_a_step_is_read_as_in_the_first_run(tmp_path, loader, mean):
    program = AVERAGED.replace("LOADER", loader).replace("MEAN", mean)
    got = helpers.run(tmp_path, program, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("persistent", "rewind", True), got.text()
    assert "# birth" in alarm["births"][0]["source"], got.text()
    own = program.replace("opt.step()", "opt.step() if k != 4 else None")
    helpers.write_script(tmp_path, own, "own.py")
    assert got.out == helpers.plain(tmp_path, "own.py").out, got.text()


READ_LATER = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
class Out(dict):
    pass
for k in range(7):
    out = Out(fit=net(torch.rand(8, 4)).pow(2).mean(), size=net.weight.pow(2).mean())
    loss = sum(out.values())
    if k == 4:
        loss = loss + (net.weight.sum() * 0 - 1).log().detach()
    same = (lambda x: x)(out)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(k, {k: v.item() for k, v in same.items()})
"""


@pytest.mark.fast
def test_harmless_alarm_lets_output_reading_program_continue(tmp_path):
    """`stop` acts as `warn` there, so a name that is gone would end a program that has nothing to fear."""
    got = helpers.run(tmp_path, READ_LATER)
    assert got.code == 0 and got.the_alarm()["harmless"], got.text()
    assert got.out == helpers.plain(tmp_path, "train.py").out


INFERENCE = """
import torch
torch.manual_seed(0)
net, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for k, x in enumerate(torch.rand(7, 8, 4)):
    with torch.inference_mode():
        target = teacher(x)
        kept = [target.clone()]
    y = net(x * (k != 4))
    loss = (y - target.clone()).pow(2).mean() + (y / y - 1).mean() * (k == 4) + (x.sum() * (k != 4)).sqrt() * 0
    loss = loss + (torch.zeros(1) / (k != 4)).sum() * net.bias.sum()  # birth
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.fast
def test_tensors_made_in_inference_mode_are_no_obstacle(tmp_path):
    got = helpers.run(tmp_path, INFERENCE)
    assert "switched off" not in got.err, got.err
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["rerun"], alarm["weights"]) == (1, 4, "persistent", "clean"), got.text()


# Only a second process can explain these steps: the weights are in other memory after each, and each bad step is of a
# kind of its own.
TWICE = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
rate = torch.optim.lr_scheduler.StepLR(opt, 2)
for k, x in enumerate(torch.rand(9, 6, 5)):
    loss = (net(x).abs() + 1).log().mean()
    if k == 3:
        loss = loss + (x.sum() * 0).log() * net.weight.sum()  # first
    if k == 6:
        loss = loss + ((net.weight[0, 0] * 0).sqrt() + net.weight[0, :2].sum() * 3)  # second
    opt.zero_grad()
    loss.backward()
    try:
        opt.step()
        rate.step()
    except FloatingPointError:
        print("stopped", k)
    with torch.no_grad():
        for p in net.parameters():
            p.data = p.data * 0.5
    print(k, loss.item(), net.weight.sum().item(), opt.param_groups[0]["lr"])
"""


@pytest.mark.fast
@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_restart_skips_what_the_first_run_skipped(tmp_path, policy):
    got = helpers.run(tmp_path, TWICE, "--on-alarm", policy)
    assert got.code == 0 and got.out.count("stopped") == (2 if policy == "stop" else 0), got.text()
    first, second = got.alarms
    for alarm, step, word in ((first, 3, "# first"), (second, 6, "# second")):
        assert (alarm["step"], alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == (
            step,
            "persistent",
            "restart",
            True,
        ), got.text()
        line = (alarm["births"][0].get("forward") or alarm["births"][0])["line"]
        assert word in TWICE.splitlines()[line], alarm["births"][0]
