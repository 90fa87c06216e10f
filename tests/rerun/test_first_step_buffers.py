"""Running statistics of a first step that is left out go back to what the step began with, whoever gave its batch, also
where the program has written them itself before."""

import pytest

import helpers

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
BEFORE_OPTIMIZER
opt = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
data = [torch.rand(6, 3) for _ in range(5)]
data[0][2] = float("nan")
BEFORE
print(net[1].running_mean.tolist(), net[1].num_batches_tracked.item())
def values(): return net[1].running_mean.tolist(), net[1].num_batches_tracked.item()
for i, x in enumerate(data):
    STEP
    opt.step()
    print(*values())
"""
ONE = "opt.zero_grad(); loss = net(x).pow(2).mean(); loss.backward()"
STEPS = {
    "plain": ONE,
    "two forward passes": "opt.zero_grad(); loss = (net(x) - net(x.flip(0))).pow(2).mean() + "
    "net(x).mean(); loss.backward()",
    "micro-batches": "opt.zero_grad()\n    for part in x.split(3): net(part).pow(2).mean().backward()",
    "a penalty of the weights": "opt.zero_grad(); loss = net(x).pow(2).mean() + sum(p.pow(2).sum() "
    "for p in net.parameters()); loss.backward()",
    "two models": "opt.zero_grad(); loss = (net(x) - other(x)).pow(2).mean(); loss.backward()",
    "a target without a graph": "opt.zero_grad()\n    with torch.no_grad(): y = net(x)\n    loss = "
    "(net(x) - y).pow(2).mean(); loss.backward()",
}
BEFORE = {
    "nothing": "",
    "calibrated": "with torch.no_grad():\n    for _ in range(3): net(torch.rand(6, 3))",
    "looked at with a graph": "net(torch.rand(6, 3)).sum()",
    "set by hand": "net[1].running_mean.fill_(0.5)",
}


def program(step="plain", before="nothing", before_optimizer=""):
    return (
        PROGRAM.replace("STEP", STEPS[step])
        .replace("BEFORE_OPTIMIZER", before_optimizer)
        .replace("BEFORE", BEFORE[before])
    )


def lines_of(tmp_path, text, policy="skip"):
    run = helpers.run(tmp_path, text, "--on-alarm", policy)
    assert run.alarms[0]["step"] == 0 and "internal failure" not in run.err, run.text()
    return run, run.out.splitlines()


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("step", [s for s in STEPS if s != "a target without a graph"])
def test_they_are_as_the_step_began_with_them(tmp_path, step, before):
    run, lines = lines_of(tmp_path, program(step, before))
    assert run.code == 0 and len(lines) == 6 and lines[0] == lines[1] and "nan" not in run.out, run.out


def test_writes_before_the_graph_begins_are_not_restored(tmp_path):
    """A limit: a forward pass without a graph may as well be the program's own, before the step."""
    run, lines = lines_of(tmp_path, program("a target without a graph"))
    assert run.code == 0 and lines[0] != lines[1], run.out


def test_a_forward_pass_of_before_the_optimizer_stays(tmp_path):
    _, lines = lines_of(tmp_path, program(before_optimizer="net(torch.rand(6, 3)).sum().backward()"))
    assert lines[0] == lines[1] and lines[0].endswith(" 1"), lines


def test_two_bad_steps_at_the_start(tmp_path):
    _, lines = lines_of(tmp_path, program().replace("data[0][2] = ", "data[1][0] = data[0][2] = "))
    assert lines[0] == lines[1] == lines[2] != lines[3], lines


def test_loader_batch_marks_the_start_of_the_step(tmp_path):
    text = program().replace("enumerate(data)", "enumerate(torch.utils.data.DataLoader(torch.cat(data), batch_size=6))")
    _, lines = lines_of(tmp_path, text)
    assert lines[0] == lines[1] and "nan" not in "".join(lines), lines


def test_a_healthy_first_step_is_left_alone(tmp_path):
    text = program(before="calibrated").replace('data[0][2] = float("nan")', "")
    run = helpers.run(tmp_path, text)
    run.assert_silent()
    assert run.out == helpers.plain(tmp_path, tmp_path / "train.py").out
