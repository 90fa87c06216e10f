"""--tape-every N: one healthy step in N is recorded, and a bad one is explained by its operators where its bits come
out."""

import pytest

import helpers
from replayed_alone import replayed
from template_runs import EVERY, LOADER, MODELS, OPTIMIZERS, by_template, same_birth, script


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_loader(tmp_path, model, optimizer):
    text = script(model, optimizer)
    got = helpers.run(tmp_path, text, *EVERY)
    birth = by_template(got, 4)["births"][0]
    assert (birth["op"], birth["rows"], birth["samples"]) == ("aten::log", [1], [33]) and "torch.log(x)" in birth[
        "source"
    ], birth
    gate = helpers.run(tmp_path, text)
    same_birth(got, gate)
    assert got.out == gate.out
    replayed(got)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_in_a_later_epoch(tmp_path, workers):
    text = (
        script("dropout", "adam", workers, True, 4)
        .replace("i == 33", "i == 33 and late")
        .replace("class Rows", "late = False\nclass Rows")
    )
    text = text.replace(
        "    for i, (x", "    late = epoch == 3\n    for i, (x"
    )  # workers are forked again in each epoch
    got = helpers.run(tmp_path, text, *EVERY)
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "tape" and "recorded as it ran (--tape-every" in alarm["rerun_text"], got.text()
    assert alarm["births"][0]["samples"] == [33] and alarm["births"][0]["op"] == "aten::log", got.text()
    replayed(got)


def test_the_first_step_of_an_epoch(tmp_path):
    text = (
        script("dropout", "sgd", 0, False, 2)
        .replace("i == 33", "i == 3 and EPOCH")
        .replace("    for i, (x", "    EPOCH = epoch\n    for i, (x")
    )
    got = helpers.run(tmp_path, text.replace("class Rows", "EPOCH = 0\nclass Rows"), *EVERY)
    assert by_template(got, 6)["births"][0]["samples"] == [3], got.text()
    replayed(got)


def test_recorded_bad_step_is_explained_by_own_tape(tmp_path):
    got = helpers.run(tmp_path, script().replace("i == 33", "i == 9"), *EVERY)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (
        1,
        "tape",
    ) and "its operators were recorded as it ran (--tape-every 16)" in alarm["rerun_text"], got.text()
    replayed(got)


# Drawn by operators: the random numbers are those of the step, so the template makes its data new.
DRAWN = (
    helpers.TRAINING
    + """
for i in range(6):
    opt.zero_grad()
    x = torch.randn(8, 4) - 1.5
    loss = (model(x).sum(1) * torch.sqrt(x.sum(1) + SHIFT)).mean()
    loss.backward()
    opt.step()
    print(float(loss))
"""
)


def test_data_that_are_drawn_are_drawn_again(tmp_path):
    got = helpers.run(tmp_path, DRAWN.replace("SHIFT", "9.0"), *EVERY, "--on-alarm", "skip")
    assert got.alarms, "the fault does not show in this release of torch: choose another SHIFT"
    for alarm in got.alarms:
        if alarm["step"] > 1:
            assert alarm["rerun_by"] == "tape" and alarm["births"][0]["op"] == "aten::sqrt", got.text()


FILLED = (
    helpers.TRAINING
    + """
from torch.utils.data import DataLoader, TensorDataset
data = torch.rand(40, 4) + 0.5
data[33] = 0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(4, 16), nn.Linear(16, 3), nn.Dropout(0.3)
    def inner(self, h):
        return self.drop(torch.relu(self.one(h)))
    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        return self.drop(self.two(checkpoint(self.inner, self.drop(x), use_reentrant=False)))
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scale = torch.full((700, 700), 0.5)   # not small, alive all the time, and the program's own
for (x,) in DataLoader(TensorDataset(data), batch_size=8):
    opt.zero_grad()
    loss = (net(torch.log(x)) * scale[:8, :3]).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
"""
)


def test_checkpoints_that_put_generators_back(tmp_path):
    got = helpers.run(tmp_path, FILLED, *EVERY)
    assert by_template(got, 4)["births"][0]["op"] == "aten::log", got.text()
    replayed(got)


CLOSURE = LOADER.replace(
    """\
        optimizer.zero_grad()
        loss = ((model(torch.log(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
""",
    """\
        def closure():
            optimizer.zero_grad()
            loss = ((model(torch.log(x)) - y) ** 2).mean()
            loss.backward()
            return loss
        loss = optimizer.step(closure)
""",
)


@pytest.mark.parametrize(
    ("optimizer", "way"),
    [("SGD(model.parameters(), lr=0.01)", "tape"), ("LBFGS(model.parameters(), max_iter=3)", "closure")],
)
def test_closures(tmp_path, optimizer, way):
    text = (
        CLOSURE.replace("MODEL", MODELS["plain"])
        .replace("OPTIMIZER", f"torch.optim.{optimizer}")
        .replace("WORKERS", "0")
        .replace("SHUFFLE", "False")
        .replace("EPOCHS", "1")
    )
    alarm = helpers.run(tmp_path, text, *EVERY).the_alarm()
    assert (alarm["rerun_by"], alarm["births"][0]["op"], alarm["step"]) == (way, "aten::log", 4), alarm["rerun_text"]


# Its forward is finite; x is what it was, and the generator is the program's own.
BACKWARD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
own = torch.Generator().manual_seed(5)
data = torch.rand(48, 6) + 0.5
data[33, 2] = 0
class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()
first = nn.Linear(6, 6, bias=False)
with torch.no_grad(): first.weight.copy_(torch.eye(6))
model = nn.Sequential(first, Root(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
optimizer.add_param_group({"params": first.parameters(), "lr": 0.0})
for (x,) in DataLoader(TensorDataset(data), batch_size=8):
    optimizer.zero_grad()
    loss = (model(x) * torch.rand(8, 1, generator=own)).mean()
    loss.backward()
    optimizer.step()
"""


def test_backward_birth_with_own_generator_uses_the_template(tmp_path):
    got = helpers.run(tmp_path, BACKWARD, *EVERY)
    birth = by_template(got, 4)["births"][0]
    assert birth["phase"] == "backward" and got.the_alarm()["sink"]["kind"] == "gradient", birth
    same_birth(got, helpers.run(tmp_path, BACKWARD))
    replayed(got)


BUFFER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
data = torch.rand(48, 6) + 0.5
data[33] = -1
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(6))
    def forward(self, x):
        with torch.no_grad():
            self.seen.mul_(0.9).add_(x.log().mean(0), alpha=0.1)
        return self.line(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(data), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


def test_a_buffer_that_takes_in_a_nan(tmp_path):
    got = helpers.run(tmp_path, BUFFER, *EVERY)
    assert by_template(got, 4)["sink"] == {"kind": "buffer", "name": "seen"}, got.text()
    same_birth(got, helpers.run(tmp_path, BUFFER))
    replayed(got)


WORDS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
words, labels = torch.randint(50, (48, 5)), torch.randint(4, (48,))
scales = torch.ones(48, 1)
scales[33] = 0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.recurrent, self.head = nn.Embedding(50, 16), nn.LSTM(16, 16, batch_first=True, dropout=0.2, num_layers=2), nn.Linear(16, 4)
    def forward(self, w, scale):
        with torch.autocast("cpu", enabled=False):  # oneDNN has no bfloat16 LSTM for a processor without AVX-512
            hidden = self.recurrent(self.table(w))[0]
        return self.head(hidden[:, -1] / scale)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch in DataLoader([{"w": w, "label": l, "scale": s} for w, l, s in zip(words, labels, scales)], batch_size=8, shuffle=True):
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch["w"], batch["scale"])
    loss = nn.functional.cross_entropy(out.float(), batch["label"])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def test_words_a_recurrent_layer_and_autocast(tmp_path):
    text = WORDS.replace("torch.manual_seed(1)", "torch.manual_seed(SEED)")
    gate = None
    for seed in range(1, 20):  # one whose shuffling puts the sample behind the recorded step
        gate = helpers.run(tmp_path, text.replace("SEED", str(seed)))
        if gate.the_alarm()["step"] > 1:
            break
    got = helpers.run(tmp_path, text.replace("SEED", str(seed)), *EVERY)
    assert by_template(got, gate.the_alarm()["step"])["births"][0]["op"] == "aten::div", got.text()
    same_birth(got, gate)


ACCUMULATED = LOADER.replace("        optimizer.zero_grad()\n", "").replace(
    "        optimizer.step()\n",
    """\
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
""",
)


def test_accumulation(tmp_path):
    text = (
        ACCUMULATED.replace("MODEL", MODELS["dropout"])
        .replace("OPTIMIZER", OPTIMIZERS["sgd"])
        .replace("WORKERS", "0")
        .replace("SHUFFLE", "False")
        .replace("EPOCHS", "1")
    )
    alarm = by_template(helpers.run(tmp_path, text, *EVERY), 2)
    assert alarm["micro_batch"] == 0 and alarm["births"][0]["samples"] == [33], alarm


SCALED = (
    LOADER.replace("loss.backward()", "scaler.scale(loss).backward()")
    .replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    .replace("loader =", "scaler = torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=2)\nloader =")
)


def test_a_scaler_whose_scale_grows(tmp_path):
    text = (
        SCALED.replace("MODEL", MODELS["plain"])
        .replace("OPTIMIZER", OPTIMIZERS["adam"])
        .replace("WORKERS", "0")
        .replace("SHUFFLE", "False")
        .replace("EPOCHS", "1")
    )
    by_template(helpers.run(tmp_path, text, *EVERY), 4)


GAN = (
    helpers.TRAINING
    + """
from torch.utils.data import DataLoader, TensorDataset
critic = nn.Linear(3, 1)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
data = torch.rand(40, 4) + 0.5
if BAD is not None: data[33] = float("nan")
for i, (x,) in enumerate(DataLoader(TensorDataset(data), batch_size=8)):
    second.zero_grad()
    one = critic(model(torch.randn(8, 4)).detach()).mean() - critic(x[:, :3] if BAD == "second" else torch.ones(8, 3)).mean()
    one.backward()
    second.step()
    opt.zero_grad()
    two = -critic(model(x if BAD == "first" else torch.randn(8, 4))).mean()
    two.backward()
    opt.step()
"""
)


@pytest.mark.parametrize("bad", ["first", "second"])
def test_two_optimizers_have_a_template_each(tmp_path, bad):
    got = helpers.run(tmp_path, GAN.replace("BAD", repr(bad)), *EVERY)
    alarm = got.the_alarm()
    assert alarm["births"] and alarm["rerun"] == "persistent", got.text()
    if bad == "second":  # whose batch is fetched in its own window
        assert alarm["rerun_by"] == "tape" and "tape-every" in alarm["rerun_text"], got.text()


def test_skip_continues_as_without_templates(tmp_path):
    text = script("statistics", "adam", 0, True, 6)
    got, gate = (helpers.run(tmp_path, text, *options, "--on-alarm", "skip") for options in (EVERY, ()))
    assert (got.code, got.out) == (0, gate.out), got.text()
    assert [a["step"] for a in got.alarms] == [a["step"] for a in gate.alarms] and len(got.alarms) == 6
    ways = [[a["rerun_by"] for a in run.alarms] for run in (got, gate)]  # how often is a matter of the policy
    assert ways[0] == ["tape" if way == "rewind" else way for way in ways[1]] and ways[0][0] == "tape", ways
    for alarm, was in zip(got.alarms, gate.alarms):
        assert [b["samples"] for b in alarm["births"]] == [b["samples"] for b in was["births"]]


HASHED = """
import hashlib
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
print(torch.rand(3).tolist())
"""


@pytest.mark.parametrize("every", ["1", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("2", "5"))])
def test_a_healthy_run_says_what_it_says_alone(tmp_path, every):
    text = (
        script("statistics", "adam", 0, True, 2).replace("i == 33", "i == 99").replace("nn.ReLU()", "nn.Dropout(0.3)")
        + HASHED
    )
    got = helpers.run(tmp_path, text, "--tape-every", every)
    got.assert_silent()
    alone = helpers.plain(tmp_path, "train.py")
    assert (got.out, helpers.without_closing_line(got.err)) == (alone.out, alone.err)


# Says after each step what is recorded, and which of the tensors of the step before are there still.
WATCHED = (
    LOADER.replace(
        "        print(epoch, i, float(loss))\n",
        """\
        states.append((_native.tape_on(), _native.trace_on()))
        kept = [weakref.ref(x.untyped_storage()), weakref.ref(loss), weakref.ref(x)]
        del x, y, loss
        print(i, [r() is not None for r in kept][1:])
""",
    ).replace("import torch\n", "import torch, weakref\nfrom finitude import _native\nstates = []\n", 1)
    + "print(states)\n"
)


def test_between_templates_nothing_is_recorded_and_nothing_held(tmp_path):
    text = (
        WATCHED.replace("MODEL", MODELS["plain"])
        .replace("OPTIMIZER", OPTIMIZERS["sgd"])
        .replace("WORKERS", "0")
        .replace("SHUFFLE", "False")
        .replace("EPOCHS", "1")
        .replace("i == 33", "i == 99")
    )
    got, gate = (helpers.run(tmp_path, text, *options) for options in (("--tape-every", "3"), ()))
    *lines, states = got.out.splitlines()
    # The window that follows step 0 is recorded, and the one that follows step 3.
    assert states == repr([(i in (0, 3),) * 2 for i in range(6)]), got.text()
    assert lines == gate.out.splitlines()[:-1]


def test_a_template_keeps_no_parameters(tmp_path):
    text = (
        script("wide").replace("i == 33", "i == 99")
        + """
from finitude import _native
print(_native.template_step(optimizer), _native.template_bytes(optimizer))
"""
    )
    step, kept = helpers.run(tmp_path, text, *EVERY).out.split()[-2:]
    assert step == "1" and 0 <= int(kept) < 1000, (step, kept)


def test_other_ways_of_alarm(tmp_path):
    got = helpers.run(tmp_path, script(), *EVERY, "--on-alarm", "warn", "--capsules", "0")
    alarm = got.alarms[0]
    assert (alarm["rerun_by"], alarm["capsule"], alarm["weights"]) == ("tape", None, "damaged"), got.text()
    got = helpers.run(tmp_path, script(), *EVERY, "--on-alarm", "raise")
    assert (got.code, got.the_alarm()["rerun_by"]) == (1, "none"), got.text()


def test_by_the_environment(tmp_path):
    got = helpers.run(tmp_path, script(), env={"FINITUDE_TAPE_EVERY": "7"})
    assert "(--tape-every 7)" in by_template(got, 4)["rerun_text"]
