"""--tape-every N: one healthy step in N is recorded, and a bad one is explained by its operators where its bits come out."""

import json
import pathlib
import subprocess

import helpers
import pytest
from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")
EVERY = ("--tape-every", "16")  # the second step, then the 18th

# Eight rows to a batch; what makes a step bad is in one sample.
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(1)
class Rows(Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        x = torch.full((6,), 0.5) + i
        return (x * 0 if i == 33 else x), torch.tensor([float(i % 2)])
model = MODEL
optimizer = OPTIMIZER
loader = DataLoader(Rows(), batch_size=8, num_workers=WORKERS, shuffle=SHUFFLE)
for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = ((model(torch.log(x)) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        print(epoch, i, float(loss))
"""
MODELS = {
    "plain": "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))",
    "dropout": "nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1))",
    "statistics": "nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))",
    "wide": "nn.Sequential(nn.Linear(6, 900), nn.Dropout(0.1), nn.Linear(900, 900), nn.BatchNorm1d(900), nn.Linear(900, 1))",
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
    "adam": "torch.optim.AdamW(model.parameters(), lr=0.01)",
}


def script(model="plain", optimizer="sgd", workers=0, shuffle=False, epochs=1):
    return LOADER.replace("MODEL", MODELS[model]).replace("OPTIMIZER", OPTIMIZERS[optimizer]).replace("WORKERS", str(workers)) \
        .replace("SHUFFLE", str(shuffle)).replace("EPOCHS", str(epochs))


def by_template(got, step, recorded=1):
    """The alarm of that step is explained by the one that was recorded."""
    alarm = got.the_alarm()
    assert (alarm["rerun_by"], alarm["rerun"], alarm["rerun_verified"]) == ("tape", "persistent", True), got.told()
    assert f"the operators of step {recorded}, recorded as it ran (--tape-every" in alarm["rerun_text"], alarm["rerun_text"]
    assert alarm["step"] == step
    return alarm


def passed_over(got, why):
    """The template was tried, and the step explained in another way."""
    alarm = got.the_alarm()
    assert alarm["rerun_by"] != "tape" and alarm["births"], got.told()
    assert "tape of step " in alarm["rerun_text"] and why in alarm["rerun_text"], alarm["rerun_text"]
    return alarm


def same_birth(got, gate):
    told, was = got.the_alarm(), gate.the_alarm()
    assert (told["rerun_by"], was["rerun_by"]) == ("tape", "rewind"), got.told()
    for key in ("phase", "op", "source", "file", "line", "module", "node", "rows", "samples", "inputs", "outputs"):
        assert told["births"][0].get(key) == was["births"][0].get(key), key
    assert told["cause"]["class"] == was["cause"]["class"] and told["sink"] == was["sink"] and told["loss"] == was["loss"]
    assert told["gradients"] == was["gradients"] and told["path"] == was["path"]
    assert (told["fix"] or {}).get("text") == (was["fix"] or {}).get("text")


def replayed(got):
    """The capsule is of the bad step: it comes out with the same bits, without Python."""
    alarm = got.the_alarm()
    assert alarm["capsule"], got.told()
    folder = got.folder / alarm["capsule"]
    assert json.loads((folder / "capsule.json").read_text())["replay"] == "identical"
    done = subprocess.run([PLAYER, folder], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
    assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr
    return json.loads((folder / "capsule.json").read_text())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_loader(tmp_path, model, optimizer):
    text = script(model, optimizer)
    got = helpers.run(tmp_path, text, *EVERY)
    birth = by_template(got, 4)["births"][0]
    assert (birth["op"], birth["rows"], birth["samples"]) == ("aten::log", [1], [33]) and "torch.log(x)" in birth["source"], birth
    gate = helpers.run(tmp_path, text)
    same_birth(got, gate)
    assert got.out == gate.out
    replayed(got)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_in_a_later_epoch(tmp_path, workers):
    text = script("dropout", "adam", workers, True, 4).replace("i == 33", "i == 33 and late").replace("class Rows", "late = False\nclass Rows")
    text = text.replace("    for i, (x", "    late = epoch == 3\n    for i, (x")  # workers are forked anew in each epoch
    got = helpers.run(tmp_path, text, *EVERY)
    alarm = got.the_alarm()
    assert alarm["rerun_by"] == "tape" and "recorded as it ran (--tape-every" in alarm["rerun_text"], got.told()
    assert alarm["births"][0]["samples"] == [33] and alarm["births"][0]["op"] == "aten::log", got.told()
    replayed(got)


def test_the_first_step_of_an_epoch(tmp_path):
    text = script("dropout", "sgd", 0, False, 2).replace("i == 33", "i == 3 and EPOCH").replace("    for i, (x", "    EPOCH = epoch\n    for i, (x")
    got = helpers.run(tmp_path, text.replace("class Rows", "EPOCH = 0\nclass Rows"), *EVERY)
    assert by_template(got, 6)["births"][0]["samples"] == [3], got.told()
    replayed(got)


def test_a_bad_step_that_is_recorded_itself_is_told_by_its_own_tape(tmp_path):
    got = helpers.run(tmp_path, script().replace("i == 33", "i == 9"), *EVERY)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"]) == (1, "tape") and "its operators were recorded as it ran (--tape-every 16)" in alarm["rerun_text"], got.told()
    replayed(got)


def test_before_anything_is_recorded_it_is_as_without(tmp_path):
    alarm = helpers.run(tmp_path, script().replace("i == 33", "i == 1"), *EVERY).the_alarm()
    assert alarm["step"] == 0 and "tape" not in alarm["rerun_text"] and alarm["births"], alarm["rerun_text"]


def test_a_batch_of_another_shape_is_passed_over(tmp_path):
    got = helpers.run(tmp_path, script().replace("return 48", "return 36"), *EVERY)
    assert passed_over(got, "tape of step 1: the batch has another shape")["step"] == 4


def test_another_number_of_batches_is_passed_over(tmp_path):
    text = script().replace("for i, (x, y) in enumerate(loader):", """it = iter(loader)
    for i in range(4):
        x, y = next(it)
        if i == 3: x, y = next(it)""")
    passed_over(helpers.run(tmp_path, text, *EVERY), "it took 1 batches of its loader, this step 2")


def test_another_number_in_the_program_is_passed_over(tmp_path):
    text = script().replace(".mean()", ".mean() * (1 + i / 10)")
    alarm = passed_over(helpers.run(tmp_path, text.replace("return (x * 0 if i == 33 else x)", "return x * (-1e30 if i == 33 else 1)")
                                    .replace("torch.log(x)", "(x / 10)")
                                    .replace("- y) ** 2", "- y) ** 2"), *EVERY), "it comes out with other bits")
    assert alarm["step"] == 4


def test_a_batch_that_the_step_writes_into_is_passed_over(tmp_path):
    passed_over(helpers.run(tmp_path, script().replace("optimizer.zero_grad()", "x.mul_(2); optimizer.zero_grad()"), *EVERY),
                "this step wrote into its batch")


# What comes of no loader is as it was recorded.
LISTED = helpers.TRAINING + """
for i in range(6):
    opt.zero_grad()
    x = batches[i]
    if i == 4: x = x * NAN
    loss = loss_of(x)
    loss.backward()
    opt.step()
"""


def test_data_of_no_loader_are_passed_over(tmp_path):
    alarm = passed_over(helpers.run(tmp_path, LISTED, *EVERY), "it comes out with other bits")
    assert alarm["births"][0]["op"] == "aten::mul", alarm


# Drawn by operators: the random numbers are those of the step, so the template has its data anew.
DRAWN = helpers.TRAINING + """
for i in range(6):
    opt.zero_grad()
    x = torch.randn(8, 4) - 1.5
    loss = (model(x).sum(1) * torch.sqrt(x.sum(1) + SHIFT)).mean()
    loss.backward()
    opt.step()
    print(float(loss))
"""


def test_data_that_are_drawn_are_drawn_again(tmp_path):
    got = helpers.run(tmp_path, DRAWN.replace("SHIFT", "9.0"), *EVERY, "--on-alarm", "skip")
    assert got.alarms, "the fault does not show in this release of torch: choose another SHIFT"
    for alarm in got.alarms:
        if alarm["step"] > 1:
            assert alarm["rerun_by"] == "tape" and alarm["births"][0]["op"] == "aten::sqrt", got.told()


FILLED = helpers.TRAINING + """
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


def test_checkpoints_that_put_generators_back(tmp_path):
    got = helpers.run(tmp_path, FILLED, *EVERY)
    assert by_template(got, 4)["births"][0]["op"] == "aten::log", got.told()
    replayed(got)


ACCUMULATED = LOADER.replace("        optimizer.zero_grad()\n", "").replace("        optimizer.step()\n", """\
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
""")


def test_accumulation(tmp_path):
    text = ACCUMULATED.replace("MODEL", MODELS["dropout"]).replace("OPTIMIZER", OPTIMIZERS["sgd"]).replace("WORKERS", "0") \
        .replace("SHUFFLE", "False").replace("EPOCHS", "1")
    alarm = by_template(helpers.run(tmp_path, text, *EVERY), 2)
    assert alarm["micro_batch"] == 0 and alarm["births"][0]["samples"] == [33], alarm


SCALED = LOADER.replace("loss.backward()", "scaler.scale(loss).backward()").replace("optimizer.step()", "scaler.step(optimizer); scaler.update()") \
    .replace("loader =", "scaler = torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=2)\nloader =")


def test_a_scaler_whose_scale_grows(tmp_path):
    text = SCALED.replace("MODEL", MODELS["plain"]).replace("OPTIMIZER", OPTIMIZERS["adam"]).replace("WORKERS", "0") \
        .replace("SHUFFLE", "False").replace("EPOCHS", "1")
    by_template(helpers.run(tmp_path, text, *EVERY), 4)


GAN = helpers.TRAINING + """
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


@pytest.mark.parametrize("bad", ["first", "second"])
def test_two_optimizers_have_a_template_each(tmp_path, bad):
    got = helpers.run(tmp_path, GAN.replace("BAD", repr(bad)), *EVERY)
    alarm = got.the_alarm()
    assert alarm["births"] and alarm["rerun"] == "persistent", got.told()
    if bad == "second":  # whose batch is fetched in its own window
        assert alarm["rerun_by"] == "tape" and "tape-every" in alarm["rerun_text"], got.told()


def test_skip_goes_on_as_without(tmp_path):
    text = script("statistics", "adam", 0, True, 6)
    got, gate = (helpers.run(tmp_path, text, *options, "--on-alarm", "skip") for options in (EVERY, ()))
    assert (got.code, got.out) == (0, gate.out), got.told()
    assert [a["step"] for a in got.alarms] == [a["step"] for a in gate.alarms] and len(got.alarms) == 6
    ways = [[a["rerun_by"] for a in run.alarms] for run in (got, gate)]  # how often is a matter of the policy
    assert ways[0] == ["tape" if way == "rewind" else way for way in ways[1]] and ways[0][0] == "tape", ways
    for told, was in zip(got.alarms, gate.alarms):
        assert [b["samples"] for b in told["births"]] == [b["samples"] for b in was["births"]]


HASHED = """
import hashlib
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
print(torch.rand(3).tolist())
"""


@pytest.mark.parametrize("every", ["1", "2", "5"])
def test_a_healthy_run_says_what_it_says_alone(tmp_path, every):
    text = script("statistics", "adam", 0, True, 2).replace("i == 33", "i == 99").replace("nn.ReLU()", "nn.Dropout(0.3)") + HASHED
    got = helpers.run(tmp_path, text, "--tape-every", every)
    got.assert_silent()
    alone = helpers.plain(tmp_path, "train.py")
    assert (got.out, helpers.without_closing_line(got.err)) == (alone.out, alone.err)


# Says after each step what is recorded, and which of the tensors of the step before are there still.
WATCHED = LOADER.replace("        print(epoch, i, float(loss))\n", """\
        states.append((_native.tape_on(), _native.trace_on()))
        kept = [weakref.ref(x.untyped_storage()), weakref.ref(loss), weakref.ref(x)]
        del x, y, loss
        print(i, [r() is not None for r in kept][1:])
""").replace("import torch\n", "import torch, weakref\nfrom finitude import _native\nstates = []\n", 1) + "print(states)\n"


def test_between_templates_nothing_is_recorded_and_nothing_held(tmp_path):
    text = WATCHED.replace("MODEL", MODELS["plain"]).replace("OPTIMIZER", OPTIMIZERS["sgd"]).replace("WORKERS", "0") \
        .replace("SHUFFLE", "False").replace("EPOCHS", "1").replace("i == 33", "i == 99")
    got, gate = (helpers.run(tmp_path, text, *options) for options in (("--tape-every", "3"), ()))
    *lines, states = got.out.splitlines()
    # The window that follows step 0 is recorded, and the one that follows step 3.
    assert states == repr([(i in (0, 3),) * 2 for i in range(6)]), got.told()
    assert lines == gate.out.splitlines()[:-1]


def test_a_step_that_reads_too_much_is_no_template(tmp_path):
    text = script("wide").replace("loss.backward()", "loss.backward(); big = torch.rand(1 << 19); (big * 2).sum()")
    text = text.replace("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        import numpy\n        for _ in range(3): "
                        "torch.from_numpy(numpy.ones(1 << 18, dtype='f4')).sum()\n")
    passed_over(helpers.run(tmp_path, text, *EVERY, "--capsule-max", "1"), "the step reads more than 1 MB")


def test_an_operator_of_the_programs_own_is_left_to_the_next_way(tmp_path):
    text = script().replace("model =", """library = torch.library.Library("mine", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")
model =""").replace("torch.log(x)", "torch.log(torch.ops.mine.twice(x))")
    alarm = helpers.run(tmp_path, text, *EVERY).the_alarm()
    assert alarm["births"][0]["op"] == "aten::log"
    assert alarm["rerun_by"] == "tape" or "operators of other libraries: mine::twice" in alarm["rerun_text"], alarm["rerun_text"]


def test_other_ways_of_alarm(tmp_path):
    got = helpers.run(tmp_path, script(), *EVERY, "--on-alarm", "warn", "--capsules", "0")
    alarm = got.alarms[0]
    assert (alarm["rerun_by"], alarm["capsule"], alarm["weights"]) == ("tape", None, "damaged"), got.told()
    got = helpers.run(tmp_path, script(), *EVERY, "--on-alarm", "raise")
    assert (got.code, got.the_alarm()["rerun_by"]) == (1, "none"), got.told()


def test_by_the_environment(tmp_path):
    got = helpers.run(tmp_path, script(), env={"FINITUDE_TAPE_EVERY": "7"})
    assert "(--tape-every 7)" in by_template(got, 4)["rerun_text"]
