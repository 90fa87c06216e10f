"""--rollback-every: at an alarm training goes back to a good copy, bit for bit as a script does that keeps its own."""

import json

import pytest

from helpers import plain, run, write_script

# Under BY_HAND the script does for itself what the watched one has done for it: a copy after step 7, and
# `continue` where a loss is bad. The copies come after steps 1, 7 and 13; at step 16 the last is too young.
SCRIPT = """
import copy, os, sys
import torch
from torch import nn
BY_HAND = "by-hand" in sys.argv
BAD, GOOD = {bad}, 7
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
{setup}
def parts():
    return [model, *optimizers, *schedulers]
def take():
    states = [copy.deepcopy(p.state_dict()) for p in parts()]
    return states, torch.get_rng_state(), scaler and copy.deepcopy(scaler.state_dict())
def put_back(kept):
    for p, state in zip(parts(), kept[0]):
        p.load_state_dict(copy.deepcopy(state))
    torch.set_rng_state(kept[1])
    if scaler: scaler.load_state_dict(kept[2])
    {lower}
scaler, kept = {scaler}, None
for i in range(24):
    x, fault = torch.sin(torch.arange(32.0).view(8, 4) * (i + 1)), (float("nan") if i in BAD else 0.0)
    def loss_of():
        return (model(x) - 1).pow(2).mean() + fault * model[0].weight.sum()
    if BY_HAND and i in BAD:
        loss_of().backward()
        put_back(kept)
        for o in optimizers: o.zero_grad()
        continue
    {step}
    for s in schedulers: s.step()
    if BY_HAND and i == GOOD: kept = take()
state = [t for t in model.state_dict().values()] + [torch.get_rng_state()]
state += [v for o in optimizers for s in o.state_dict()["state"].values() for v in s.values() if torch.is_tensor(v)]
state += [torch.tensor(g["lr"]) for o in optimizers for g in o.param_groups]
if scaler: state.append(torch.tensor(list(map(float, (scaler.get_scale(), scaler._get_growth_tracker())))))
import hashlib
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in state)).hexdigest())
"""

PLAIN_STEP = """
    for o in optimizers: o.zero_grad()
    loss_of().backward()
    for o in optimizers: o.step()
"""
SCALED_STEP = """
    optimizers[0].zero_grad()
    scaler.scale(loss_of()).backward()
    scaler.step(optimizers[0])
    scaler.update()
"""
CLOSURE_STEP = """
    def closure():
        optimizers[0].zero_grad()
        loss = loss_of()
        loss.backward()
        return loss
    optimizers[0].step(closure)
"""
SGD = "optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)]"
ADAM = "optimizers = [torch.optim.Adam(model.parameters(), lr=0.01)]"
TWO = (
    "optimizers = [torch.optim.Adam(model[0].parameters(), lr=0.01), "
    "torch.optim.SGD(model[3].parameters(), lr=0.05, momentum=0.9)]"
)
COSINE = "; schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], 24)]"
LAMBDA = "; schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda i: 1 / (1 + i))]"
NONE = "; schedulers = []"
SCALER = "torch.amp.GradScaler('cpu', init_scale=256.0, growth_interval=4)"
HALF = """for o in optimizers:
        for g in o.param_groups: g["lr"] *= 0.5; g["initial_lr"] *= 0.5
    for s in schedulers: s.base_lrs = [r * 0.5 for r in s.base_lrs]"""


def script(setup, step=PLAIN_STEP, scaler="None", lower="pass", bad=(16,)):
    return SCRIPT.format(setup=setup, step=step, scaler=scaler, lower=lower, bad=tuple(bad))


def back(folder, text, *options, every=6):
    return run(folder, text, "--on-alarm", "rollback", "--rollback-every", str(every), "--level", "trace", *options)


@pytest.mark.parametrize(
    "setup, step, scaler",
    [
        (SGD + COSINE, PLAIN_STEP, "None"),
        (ADAM + LAMBDA, PLAIN_STEP, "None"),
        (SGD + NONE, SCALED_STEP, SCALER),
        (ADAM + NONE, CLOSURE_STEP, "None"),
        (TWO + NONE, PLAIN_STEP, "None"),
    ],
    ids=["momentum", "adam", "scaler", "closure", "two"],
)
def test_way_back_is_bit_equal_to_manual_one(tmp_path, setup, step, scaler):
    text = script(setup, step, scaler)
    got = back(tmp_path, text)
    assert got.code == 0 and got.alarms, got.text()
    by_hand = plain(tmp_path, "train.py", "by-hand")
    assert got.out == by_hand.out, got.text() + by_hand.err
    assert "went back to the state after step 7" in got.alarms[0]["action"], got.text()


def test_each_return_to_one_copy_lowers_the_rate(tmp_path):
    text = script(ADAM + LAMBDA, lower=HALF, bad=(16, 17))
    got = back(tmp_path, text, "--rollback-lr", "0.5")
    # Manually: the second load brings the rates of the copy back, so what is halved twice is halved in one.
    by_hand = text.replace("*= 0.5", "*= 0.5 ** (i - 15)").replace("r * 0.5", "r * 0.5 ** (i - 15)")
    write_script(tmp_path, by_hand.replace("[r *", "[r0 *").replace("for r in s.base_lrs", "for r0 in [0.01]"))
    assert got.code == 0 and got.out == plain(tmp_path, "train.py", "by-hand").out, got.text()
    assert [a["action"].rsplit("with ")[-1] for a in got.alarms] == [
        f"{f} times its learning rate" for f in (0.5, 0.25)
    ]


def events(got, kind):
    lines = next(got.folder.glob("finitude-runs/*/events.jsonl")).read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["kind"] == kind]


def test_return_is_an_event_with_its_step(tmp_path):
    got = back(tmp_path, script(SGD + NONE), "--level", "gate", "--capsules", "0")
    assert got.alarms[0]["rerun_by"] == "rewind" and "training went back" in got.err, got.text()
    rollbacks = [(e["step"], e["to"], e["lr_factor"]) for e in events(got, "rollback")]
    assert rollbacks == [(16, 7, 1.0)], got.text()


def test_no_copy_is_good_before_finite_steps(tmp_path):
    got = back(tmp_path, script(SGD + NONE, bad=(4,)))
    assert got.code == 0 and got.alarms[0]["action"] == "the step was skipped", got.text()
    assert not events(got, "rollback")


def test_max_skips_limits_returns_to_one_copy(tmp_path):
    got = back(tmp_path, script(SGD + NONE, bad=(14, 16, 18)), "--max-skips", "2")
    assert got.code == 1 and "went back to one copy 2 times" in got.alarms[-1]["text"], got.text()


RUINED = """
    for o in optimizers: o.zero_grad()
    loss_of().backward()
    for o in optimizers: o.step()
    if i == 15:
        with torch.no_grad(): model[0].weight.fill_(float("nan"))
"""


def test_ruined_weights_go_back_too(tmp_path):
    got = back(tmp_path, script(SGD + NONE, step=RUINED, bad=()))
    assert got.code == 0 and "went back to the state after step 7" in got.alarms[0]["action"], got.text()
    assert len(got.alarms) == 1, got.text()


GROWING = """
    if i == 8: optimizers[0].param_groups[0].update(lr=1e3)
    for o in optimizers: o.zero_grad()
    loss_of().backward()
    for o in optimizers: o.step()
"""
PLAIN_SGD = "model = nn.Linear(4, 3); optimizers = [torch.optim.SGD(model.parameters(), lr=0.01)]"


def test_copy_after_onset_is_not_used(tmp_path):
    text = script(PLAIN_SGD + NONE, step=GROWING, bad=()).replace("model[0].weight", "model.weight")
    got = back(tmp_path, text, every=4)
    first = got.alarms[0]
    assert first["onset"]["step"] <= 9 and "went back to the state after step 5" in first["action"], got.text()


def test_copies_beyond_the_budget_are_reported(tmp_path):
    wide = script(SGD + NONE).replace("nn.Linear(4, 16)", "nn.Linear(4, 60000), nn.Linear(60000, 16)")
    got = back(tmp_path, wide.replace("range(24)", "range(3)"), "--rollback-mb", "1")
    assert got.code == 0 and "two copies of the training take" in got.err and got.err.count("keeps no copies") == 1


def test_copies_change_nothing_in_healthy_run(tmp_path):
    text = script(ADAM + LAMBDA, bad=())
    got = back(tmp_path, text)
    got.assert_silent()
    assert got.out == plain(tmp_path, "train.py").out


def test_copies_need_the_policy(tmp_path):
    got = run(tmp_path, "print(1)", "--rollback-every", "5")
    assert "no copies without --on-alarm rollback" in got.err


# Row 21 makes the loss of its batch bad in each epoch that draws it.
ROWS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.arange(32.0).view(32, 1) / 32, torch.arange(32))
loader = DataLoader(data, batch_size=4, {loader})
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    drawn = []
    for x, rows in loader:
        drawn += rows.tolist()
        loss = (model(x) - x).pow(2) / (rows != 21).float().view(-1, 1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    print(len(drawn), 21 in drawn)
"""


@pytest.mark.parametrize("loader", ["", pytest.param("num_workers=1, persistent_workers=True", marks=pytest.mark.slow)])
def test_rows_of_a_bad_step_are_skipped(tmp_path, loader):
    text = ROWS.format(loader=loader)
    options = "--on-alarm", "rollback", "--rollback-every", "2", "--rollback-skip-rows"
    got = run(tmp_path, text, *options)
    first, *later = got.out.splitlines()
    assert got.code == 0 and first == "32 True" and len(got.alarms) == 1, got.text()
    assert later in (["31 False"] * 3, ["28 False"] * 3), got.text()
    assert "of TensorDataset are not drawn again" in got.alarms[0]["text"]
