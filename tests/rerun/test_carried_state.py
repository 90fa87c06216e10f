"""What a program carries from one step into the next: hidden states, counters of its objects, functions that hold
tensors."""

import pytest

import helpers

# Truncated backpropagation through time: what one window leaves behind is read by the next, and nothing else keeps it.
CARRIED = """
import torch
torch.manual_seed(0)
rnn, head = torch.nn.LSTM(3, 8, batch_first=True), torch.nn.Linear(8, 1)
weights = [*rnn.parameters(), *head.parameters()]
opt = torch.optim.Adam(weights, 1e-2)
rows = torch.rand(4, 60, 3)
rows[2, 30:40] = BAD
state = None
for k in range(0, 60, 10):
    if state is not None:
        state = tuple(s.detach() for s in state)
    out, state = rnn(rows[:, k:k + 10], state)
    target = rows[:, k:k + 10].sum((1, 2)).log()  # birth
    loss = (head(out[:, -1])[:, 0] - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(k, loss.item(), float(state[0].sum()), float(head.weight.sum()))
"""
IN_A_FUNCTION = CARRIED.replace("state = None\n", "def main():\n  state = None\n", 1)


def _indented(text):
    head, loop = text.split("for k in range", 1)
    return head + "".join("  " + line + "\n" for line in ("for k in range" + loop).splitlines()) + "main()\n"


@pytest.mark.fast
@pytest.mark.parametrize("text", [CARRIED, _indented(IN_A_FUNCTION)], ids=["module", "function"])
def test_continuing_program_finds_its_own_state(tmp_path, text):
    text = text.replace("BAD", "0")
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert got.code == 0, got.text()
    alarm = got.the_alarm()
    assert alarm["step"] == 3 and alarm["rerun"] == "persistent" and alarm["rerun_verified"], got.text()
    assert "# birth" in text.splitlines()[alarm["births"][0]["line"]], alarm["births"][0]
    # The same losses as where the program itself leaves that step out.
    own = text.replace("loss.backward()", "loss.backward() if k != 30 else None").replace(
        "opt.step()", "opt.step() if k != 30 else None"
    )
    helpers.write_script(tmp_path, own, "own.py")
    assert got.out == helpers.plain(tmp_path, "own.py").out


@pytest.mark.fast
def test_state_from_skipped_step_is_no_bad_batch(tmp_path):
    """The step that reads it has nothing else wrong with it."""
    text = CARRIED.replace("BAD", "0").replace(
        "out, state = rnn(rows[:, k:k + 10], state)", "out, state = rnn(rows[:, k:k + 10] / (k != 30), state)"
    )
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    first, second = got.alarms[:2]
    assert (first["step"], second["step"]) == (3, 4) and first["births"][0]["phase"] in ("forward", "data"), got.text()
    birth = second["births"][0]
    assert (birth["phase"], birth["name"], second["cause"]["class"]) == ("state", "state", "sticky-state"), got.text()


# The loss depends on what an object has counted, in ways that show although it is infinite.
COUNTED = """
import torch
torch.manual_seed(0)
class Trainer:
    def __init__(self):
        self.net, self.free = torch.nn.Linear(3, 1), torch.nn.Parameter(torch.zeros(3))
        self.opt = torch.optim.SGD([*self.net.parameters(), self.free], lr=0.1)
        self.seen, self.log, self.meters = 0, [], {{"rows": 0, "sum": 0.0}}
    def step(self, x):
        self.seen += 1
        self.log.append(self.seen)
        self.meters["rows"] += len(x)
        weight = {weight}
        loss = (self.net(x)[:, 0] - x.sum(1).log()).pow(2).mean()  # birth
        loss = loss + (self.free - weight).pow(2).sum()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.meters["sum"] += float(self.free.sum())
trainer = Trainer()
for i in range(8):
    x = torch.rand(4, 3)
    if i == 5: x[2] = 0
    {leave_out}
    trainer.step(x)
print(trainer.seen, trainer.log, trainer.meters, trainer.free.tolist())
"""
COUNTS = {"a figure": "self.seen", "a list": "len(self.log)", "a dict": "self.meters['rows'] / 4"}


@pytest.mark.fast
@pytest.mark.parametrize("weight", COUNTS.values(), ids=COUNTS)
def test_object_counters_the_step_depends_on_are_restored(tmp_path, weight):
    got = helpers.run(tmp_path, COUNTED.format(weight=weight, leave_out=""), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "rewind", True), got.text()
    assert "what it counts set back" in alarm["rerun_text"] and "# birth" in alarm["births"][0]["source"], got.text()
    # As where the program itself applies no such step, and counts it all the same.
    own = COUNTED.format(
        weight=weight,
        leave_out="trainer.opt.step = (lambda: None) if i == 5 else type(trainer.opt).step.__get__(trainer.opt)",
    )
    helpers.write_script(tmp_path, own, "own.py")
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "own.py").out), got.text()


def test_names_and_flags_near_counters_are_ignored(tmp_path):
    """None, texts and flags that a trainer also has, and of which some become figures meanwhile, do not end the
    watch."""
    text = COUNTED.format(weight="self.seen", leave_out="").replace(
        "self.seen += 1", "self.seen += 1; self.best = self.seen if self.seen == 6 else None; self.late = self.seen > 5"
    )
    text = text.replace(
        "self.seen, self.log",
        "self.best, self.last, self.late, self.name = None, None, False, 'run'; self.seen, self.log",
        1,
    )
    alarm = helpers.run(tmp_path, text, "--on-alarm", "skip").the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "rewind", True)


def test_unexplained_counter_leaves_the_program_unchanged(tmp_path):
    """What grows by a factor, set back by as much as it went on, makes another step still."""
    text = COUNTED.format(weight="self.scale", leave_out="").replace(
        "self.seen += 1", "self.seen += 1; self.scale *= 1.5"
    )
    text = text.replace("self.seen, self.log", "self.scale = 1.0; self.seen, self.log", 1)
    got = helpers.run(tmp_path, text, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "restart" and alarm["rerun_verified"], got.text()
    own = text.replace(
        "    trainer.step(x)",
        "    trainer.opt.step = (lambda: None) if i == 5 else "
        "type(trainer.opt).step.__get__(trainer.opt)\n    trainer.step(x)",
    )
    helpers.write_script(tmp_path, own, "own.py")
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "own.py").out), got.text()


# What a step adds to in place is by its first run already what the second begins with.
WRITTEN = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Linear): pass
net = Net(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
carried = torch.ones(3)
net.register_buffer("u", torch.ones(1))
for i in range(8):
    x = torch.rand(4, 3)
    if i == 5: x[2] = -1
{step}
    opt.zero_grad()
    loss.backward()
    {after}
    opt.step()
print(carried.isnan().any().item(), net.weight.tolist())
"""
LOSS = "(net(x)[:, 0] - x.sum(1).log()).pow(2).mean()"
HAD_A_PART = {  # the step, what is done after it, the way of the second run
    "a sum of losses": (
        f"    loss = {LOSS}",
        "carried[0] += loss.detach(); print(carried[0].item() / (i + 1))",
        "rewind",
    ),
    "an average that the loss reads": (
        "    carried.mul_(0.9).add_(x.log().mean(0), alpha=0.1)\n    loss = (net(x - carried)).pow(2).mean()",
        "",
        "restart",
    ),
    "a comparison with it": (
        f"    loss = {LOSS} * torch.where(carried[0] > 0, 1.0, 2.0)",
        "carried[0] += loss.detach()",
        "restart",
    ),
    "a buffer, which goes back": (
        f"    net.u.copy_(net.u * x.log().mean().abs())\n    loss = {LOSS} * net.u",
        "",
        "rewind",
    ),
    "a number read of it": (
        f"    weight = 1.0 if carried[0].item() > 0 else 2.0\n    loss = {LOSS} * weight",
        "carried[0] += loss.detach()",
        "restart",
    ),
}


@pytest.mark.parametrize("what", HAD_A_PART)
def test_memory_that_the_first_run_had_ruined(tmp_path, what):
    """Only where it had no part in what the second run came to does that run show it."""
    step, after, way = HAD_A_PART[what]
    got = helpers.run(tmp_path, WRITTEN.format(step=step, after=after), "--on-alarm", "skip")
    alarm = got.report["alarms"][0]
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"], alarm["births"][0]["op"]) == (
        5,
        way,
        True,
        "aten::log",
    ), got.text()
    assert ("the step writes carried, and" in alarm["rerun_text"]) == (way == "restart"), alarm["rerun_text"]
    assert alarm["births"][0]["inputs"][0]["nan"] == 0


ADAPTED = """
import copy
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
meta = torch.optim.SGD(model.parameters(), 0.5)
for task in range(4):
    fast = copy.deepcopy(model)
    inner = torch.optim.SGD(fast.parameters(), 0.05)
    x = torch.rand(5, 3) + 0.5
    if task == 2:
        x[2] = 0
    feats = torch.log(x)FURTHER
    for _ in range(3):
        inner.zero_grad()
        loss = (fast(feats) * feats.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        inner.step()
    meta.zero_grad()
    with torch.no_grad():
        for p, q in zip(model.parameters(), fast.parameters()):
            p.grad = p - q
    meta.step()
"""


@pytest.mark.parametrize("further", ["", " * 2"])
def test_shared_features_are_traced_to_their_original_step(tmp_path, further):
    """To the inner steps behind the first they come in as a batch does."""
    run = helpers.run(tmp_path, ADAPTED.replace("FURTHER", further), "--on-alarm", "skip")
    assert run.code == 0 and [a["step"] for a in run.alarms] == [0, 1, 2], run.text()
    assert run.alarms[0]["births"][0]["op"] == "aten::log", run.text()
    for alarm in run.alarms[1:]:
        if further:
            assert "it did at step" in alarm["cause"]["text"], alarm["cause"]
        else:
            assert (alarm["births"][0]["op"], alarm["cause"]["class"]) == ("aten::log", "log-of-zero"), alarm
            assert "came in with what is there since step 0 of SGD" in alarm["rerun_text"], alarm["rerun_text"]
