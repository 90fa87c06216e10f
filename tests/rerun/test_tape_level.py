"""--level tape: every step is recorded as it runs, and a bad one is explained without running the program's code
again."""

import pytest

import helpers
from replayed_alone import replayed

TAPE = ("--level", "tape")

PLAIN = """
import torch
from torch import nn
torch.manual_seed(1)
data = [torch.rand(8, 6) for _ in range(6)]
data[3][2] = 0
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for i in range(6):
    x = data[i]
    optimizer.zero_grad()
    loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
    loss.backward()
    optimizer.step()
    print("step", i)
"""


def taped(got, op, source, step):
    alarm = got.the_alarm()
    assert (alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == ("tape", "persistent", True), got.text()
    assert "--level tape" in alarm["rerun_text"], alarm["rerun_text"]
    birth = alarm["births"][0]
    assert (birth["op"], alarm["step"]) == (op, step) and source in birth["source"], got.text()
    return alarm


def test_a_plain_script(tmp_path):
    got = helpers.run(tmp_path, PLAIN, *TAPE)
    alarm = taped(got, "aten::log", "torch.log(x.sum(1, keepdim=True))", 3)
    assert alarm["births"][0]["rows"] == [2] and got.out == "step 0\nstep 1\nstep 2\n"
    replayed(got)


# Random bytes through a pipe that gives them once: no second run can have them again, nor a second process.
ONCE = """
import os, torch
from torch import nn
torch.manual_seed(1)
source, sink = os.pipe()
for i in range(6):
    os.write(sink, os.urandom(48))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def batch():
    return torch.frombuffer(bytearray(os.read(source, 48)), dtype=torch.uint8).float().view(8, 6) / 255 + 0.01
for i in range(6):
    x = batch()
    if i == 3:
        x[2] = 0
    optimizer.zero_grad()
    loss = (torch.log(x.sum(1, keepdim=True)) * model(x)).mean()
    loss.backward()
    optimizer.step()
"""


def test_data_that_come_only_once(tmp_path):
    without = helpers.run(tmp_path, ONCE).the_alarm()
    assert not without["rerun_verified"] and "other bits" in without["rerun_text"], without["rerun_text"]
    got = helpers.run(tmp_path, ONCE, *TAPE)
    assert taped(got, "aten::log", "torch.log(", 3)["births"][0]["rows"] == [2]
    replayed(got)


LOADER = (
    helpers.TRAINING
    + """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        x = torch.full((4,), 0.5) + i
        return (x * 0 if i == 21 else x), torch.tensor([float(i % 2)])
loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        out = model(torch.log(x))
        loss = (out - y).pow(2).mean()
        loss.backward()
        opt.step()
    with torch.no_grad():
        print("epoch", epoch, finite(), float(model(torch.ones(2, 4)).sum()))
"""
)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_and_skip(tmp_path, workers):
    text = LOADER.replace("WORKERS", str(workers))
    gate = helpers.run(tmp_path, text, "--on-alarm", "skip")
    got = helpers.run(tmp_path, text, "--on-alarm", "skip", *TAPE)
    assert got.code == 0 and got.out == gate.out and "False" not in got.out, got.text()
    assert [a["step"] for a in got.alarms] == [a["step"] for a in gate.alarms] and len(got.alarms) == 2
    first, was = got.alarms[0], gate.alarms[0]
    assert (first["rerun_by"], was["rerun_by"]) == ("tape", "rewind"), got.text()
    for key in ("op", "source", "rows", "module", "phase", "samples"):
        assert first["births"][0].get(key) == was["births"][0].get(key), key
    assert first["births"][0]["samples"] == [21] and first["cause"]["class"] == was["cause"]["class"]


ACCUMULATED = (
    helpers.TRAINING
    + """
for step in range(4):
    opt.zero_grad()
    for part in range(3):
        x = batches[step]
        scale = torch.tensor([1.0]) if (step, part) != (2, 1) else torch.tensor([0.0])
        loss = loss_of(x) / scale / 3
        loss.backward()
    opt.step()
"""
)


def test_accumulation(tmp_path):
    got = helpers.run(tmp_path, ACCUMULATED, *TAPE)
    assert taped(got, "aten::div", "loss_of(x) / scale", 2)["micro_batch"] == 1
    replayed(got)


SCALED = (
    helpers.TRAINING
    + """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i in range(6):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batches[i])
    loss = (out.float() - 1).pow(2).mean()
    if i == 3: loss = loss * NAN
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
print("ended", finite(), scaler.get_scale())
"""
)


@pytest.mark.usefixtures("replays")
def test_a_scaler_with_autocast(tmp_path):
    got = helpers.run(tmp_path, SCALED, "--on-alarm", "skip", *TAPE)
    taped(got, "aten::mul", "loss * NAN", 3)
    assert (got.code, got.out) == (0, "ended True 1024.0\n"), got.text()
    replayed(got)


FAULTY = (
    helpers.TRAINING
    + """
class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()
net = nn.Sequential(nn.Linear(4, 3), Root())
net[0].weight.data.fill_(0); net[0].bias.data.fill_(1)
opt = torch.optim.SGD(net.parameters(), lr=0.0)
for i in range(5):
    opt.zero_grad()
    shift = torch.zeros(8, 3)
    if i == 2: shift[4, 1] = -1.0
    loss = net[1](net[0](batches[i]) + shift).mean()
    loss.backward()
    opt.step()
"""
)


def test_birth_in_backward_is_reported_as_by_rerun(tmp_path):
    gate, got = helpers.run(tmp_path, FAULTY).the_alarm(), helpers.run(tmp_path, FAULTY, *TAPE)
    alarm = got.the_alarm()
    assert (gate["rerun_by"], alarm["rerun_by"]) == ("rewind", "tape"), got.text()
    for key in ("phase", "op", "source", "module", "node", "rows", "inputs", "outputs"):
        assert alarm["births"][0].get(key) == gate["births"][0].get(key), key
    assert alarm["births"][0]["phase"] == "backward" and alarm["births"][0]["module"] == "Root"
    assert (
        alarm["cause"]["class"] == gate["cause"]["class"]
        and alarm["cause"]["confidence"] == gate["cause"]["confidence"]
    )
    assert (alarm["fix"] or {}).get("text") == (gate["fix"] or {}).get("text")
    replayed(got)


LOOP = (
    helpers.TRAINING
    + """
for i in range(5):
    opt.zero_grad()
    loss = loss_of(batches[i])
    if i == 2: loss = loss * NAN
    loss.backward()
    opt.step()
    print(i)
"""
)


EVALUATED = LOOP.replace(
    "print(i)",
    """with torch.no_grad():
        total = sum(float(model(torch.randn(16, 4)).mean()) for _ in range(20))""",
)


def test_evaluation_between_steps(tmp_path):
    got = helpers.run(tmp_path, EVALUATED, *TAPE)
    taped(got, "aten::mul", "loss * NAN", 2)
    replayed(got)


WHOLE_SET = "import numpy\n" + LOOP.replace(
    "print(i)",
    """with torch.no_grad():  # memory that no operator made
        for _ in range(8):
            model(torch.from_numpy(numpy.ones((50000, 4), dtype=numpy.float32)))""",
)


def test_step_reading_too_much_uses_the_next_way(tmp_path):
    got = helpers.run(tmp_path, WHOLE_SET, *TAPE, "--capsule-max", "1")
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "rewind" and "tape: the step reads more than 1 MB" in alarm["rerun_text"], got.text()
    assert alarm["births"][0]["op"] == "aten::mul"


GAN = (
    helpers.TRAINING
    + """
critic = nn.Linear(3, 1)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
def noise(i):
    return torch.randn(8, 4)
for i in range(5):
    fake = model(noise(i))
    second.zero_grad()
    one = critic(fake.detach()).mean() - critic(torch.ones(8, 3)).mean()
    if (i, "second") == BAD: one = one * NAN
    one.backward()
    second.step()
    opt.zero_grad()
    two = -critic(fake).mean()
    if (i, "first") == BAD: two = two * NAN
    two.backward()
    opt.step()
"""
)


@pytest.mark.parametrize(("bad", "source"), [("first", "two * NAN"), ("second", "one * NAN")])
def test_two_optimizers(tmp_path, bad, source):
    got = helpers.run(tmp_path, GAN.replace("BAD", repr((3, bad))), *TAPE)
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::mul" and source in alarm["births"][0]["source"], got.text()
    assert alarm["rerun_by"] in ("tape", "jump", "rewind") and alarm["rerun"] == "persistent", got.text()
    if alarm["rerun_by"] == "tape":
        replayed(got)


def test_without_capsules(tmp_path):
    got = helpers.run(tmp_path, LOOP, *TAPE, "--capsules", "0")
    assert taped(got, "aten::mul", "loss * NAN", 2)["capsule"] is None, got.text()


def test_warn_applies_the_step(tmp_path):
    got = helpers.run(tmp_path, LOOP, *TAPE, "--on-alarm", "warn")
    assert got.code == 0 and got.out == "0\n1\n2\n3\n4\n", got.text()
    assert got.alarms[0]["rerun_by"] == "tape" and got.alarms[0]["weights"] == "damaged", got.text()


def test_raise_records_nothing(tmp_path):
    got = helpers.run(tmp_path, LOOP, *TAPE, "--on-alarm", "raise")
    assert (got.code, got.the_alarm()["rerun_by"]) == (1, "none"), got.text()


def test_the_first_step(tmp_path):
    got = helpers.run(tmp_path, LOOP.replace("i == 2", "i == 0"), *TAPE)
    taped(got, "aten::mul", "loss * NAN", 0)
    replayed(got)


def test_a_script_that_raises_by_itself(tmp_path):
    got = helpers.run(
        tmp_path,
        LOOP.replace(
            "    loss.backward()", "    if not torch.isfinite(loss): raise ValueError(i)\n    loss.backward()"
        ),
        *TAPE,
    )
    taped(got, "aten::mul", "loss * NAN", 2)
    assert got.code == 1 and "ValueError: 2" in got.err, got.text()


# An operator of the program's own is not called by a replay: its code is not ours to run.
OWN = (
    helpers.TRAINING
    + """
library = torch.library.Library("mine", "DEF")
library.define("twice(Tensor x) -> Tensor")
calls = []
def twice(x):
    calls.append(1)
    return x * 2
library.impl("twice", twice, "CPU")
for i in range(5):
    opt.zero_grad()
    with torch.no_grad(): x = torch.ops.mine.twice(batches[i])
    loss = loss_of(x)
    if i == 2: loss = loss * NAN
    loss.backward()
    opt.step()
"""
)


def test_programs_own_operator_uses_the_next_way(tmp_path):
    alarm = helpers.run(tmp_path, OWN, *TAPE).the_alarm()
    assert alarm["births"][0]["op"] == "aten::mul" and alarm["rerun_by"] in ("tape", "rewind"), alarm["rerun_text"]
    if alarm["rerun_by"] == "rewind":
        assert "tape: operators of other libraries: mine::twice" in alarm["rerun_text"], alarm["rerun_text"]


def test_a_healthy_run_says_what_it_says_alone(tmp_path):
    text = (
        LOOP.replace("i == 2", "i == 99")
        + "\nimport hashlib\nprint(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())\n"
    )
    got = helpers.run(tmp_path, text, *TAPE)
    got.assert_silent()
    alone = helpers.plain(tmp_path, "train.py")
    assert (got.out, helpers.without_closing_line(got.err)) == (alone.out, alone.err)


# Its memory is given another size behind the back of every operator.
SHRUNK = (
    helpers.TRAINING
    + """
kept = None
for i in range(5):
    big = torch.rand(1 << 24)
    opt.zero_grad()
    loss = loss_of(batches[i])
    if kept is not None:
        loss = loss + 0 * kept.sum()
        kept.untyped_storage().resize_(64)
        kept.set_(kept.untyped_storage(), 0, (16,))
        kept.add_(1)
    if i == 3: loss = loss * NAN
    loss.backward()
    kept = big
    opt.step()
"""
)


def test_shrunk_memory_is_not_read_past_its_end(tmp_path):
    alarm = helpers.run(tmp_path, SHRUNK, *TAPE, "--on-alarm", "skip").the_alarm()
    assert alarm["rerun_by"] != "tape" and "tape: the content of an input" in alarm["rerun_text"], alarm["rerun_text"]


BY_HAND = """
import torch
weight = torch.randn(4, 1, requires_grad=True)
for i in range(4):
    loss = (torch.ones(2, 4) @ weight).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad = None
"""


def test_program_without_optimizer_is_watched_at_gate_level(tmp_path):
    got = helpers.run(tmp_path, BY_HAND, *TAPE)
    got.assert_no_alarm()
    assert any("--level tape" in what for what in got.watched["not_watched"]), got.watched
