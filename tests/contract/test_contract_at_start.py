"""What is not finite before the first step: corrupted state, or an intended constant that nobody hears of."""

import pytest

from helpers import training

LOOP = """
norm = nn.BatchNorm1d(3)
net = nn.Sequential(model, norm)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
{setting}
for i, x in enumerate(batches):
    opt.zero_grad()
    (net(x) - 1).pow(2).mean().backward()
    opt.step()
print("ended", finite())
"""

LOADED = """
saved = opt.state_dict()
saved["state"] = {{0: {{"step": torch.tensor(3.0), "exp_avg": torch.zeros(3, 4), "exp_avg_sq": torch.full((3, 4), {value})}}}}
opt.load_state_dict(saved)
"""

CORRUPTED = {
    "a NaN in a parameter": ("with torch.no_grad(): model.weight[1, 2] = NAN", "parameter", "0.weight"),
    "an Inf in a parameter": ("with torch.no_grad(): model.bias[0] = INF", "parameter", "0.bias"),
    "a NaN in loaded optimizer state": (LOADED.format(value="NAN"), "state", "0.weight.exp_avg_sq"),
    "a NaN in a running mean": ("norm.running_mean[1] = NAN", "buffer", "1.running_mean"),
    "a NaN in a running variance": ("norm.running_var[1] = NAN; net.eval()", "buffer", "1.running_var"),
}


@pytest.mark.parametrize("setting, kind, name", CORRUPTED.values(), ids=CORRUPTED)
def test_corrupted_state_alarms_before_step_0(tmp_path, setting, kind, name):
    got = training(tmp_path, LOOP.format(setting=setting))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]) == (0, {"kind": kind, "name": name}), got.text()
    assert alarm["cause"]["class"] == "corrupted-state" and got.code == 1
    assert alarm["births"][0]["phase"] == "state"
    assert alarm["weights"] == ("damaged" if kind == "parameter" else "clean"), got.text()


GOES_ON = ["a NaN in a parameter", "a NaN in loaded optimizer state"]


@pytest.mark.parametrize("what", GOES_ON)
def test_corrupted_first_step_alarms_once_and_is_skipped(tmp_path, what):
    setting, kind, name = CORRUPTED[what]
    got = training(
        tmp_path,
        LOOP.format(setting=setting).replace("    opt.step()", "    opt.step()\n    print(i, finite())"),
        "--on-alarm",
        "skip",
    )
    steps = [a["step"] for a in got.alarms]
    assert steps[0] == 0 and steps.count(0) == 1 and got.alarms[0]["sink"] == {"kind": kind, "name": name}, got.text()
    assert got.out.startswith(f"0 {kind != 'parameter'}\n"), got.text()
    assert {a["weights"] for a in got.alarms[1:]} <= {"damaged"}


def test_optimizer_state_alarm_names_the_loading_line(tmp_path):
    setting = LOADED.format(value="NAN").replace(
        "opt.load_state_dict(saved)",
        'torch.save(saved, "o.pt")\nsaved = torch.load("o.pt")\nopt.load_state_dict(saved)',
    )
    alarm = training(tmp_path, LOOP.format(setting=setting), "--on-alarm", "stop").the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["source"], alarm["rerun_by"]) == ("state", "opt.load_state_dict(saved)", "restart"), (
        alarm
    )
    assert (alarm["fix"]["line"], alarm["fix"]["verified"]) == (birth["line"], False) and "checkpoint" in alarm["fix"][
        "text"
    ]


INTENDED = {
    "a registered mask of -Inf": "net.register_buffer('mask', torch.full((8, 8), -INF).triu(1))",
    "a registered buffer of NaN that marks what is missing": "net.register_buffer('missing', torch.full((3,), NAN))",
    "an observer's bounds": "net.register_buffer('low', torch.tensor(INF)); "
    "net.register_buffer('high', torch.tensor(-INF))",
    "a frozen parameter of -Inf": "net.frozen = nn.Parameter(torch.full((3,), -INF), requires_grad=False)",
    "a parameter of -Inf that no loss uses": "net.mask = nn.Parameter(torch.full((3,), -INF)); "
    "opt = torch.optim.AdamW(net.parameters(), lr=0.01)",
    "a parameter of NaN of a branch that begins later": "late = nn.Parameter(torch.full((3,), NAN)); "
    "opt.add_param_group({'params': [late]})",
    "good loaded state": LOADED.format(value="0.5"),
    "nothing": "pass",
}


@pytest.mark.parametrize("setting", INTENDED.values(), ids=INTENDED)
def test_intended_values_at_the_start_are_silent(tmp_path, setting):
    training(tmp_path, LOOP.format(setting=setting)).assert_silent()


def test_state_replaced_before_first_step_is_silent(tmp_path):
    training(
        tmp_path, LOOP.format(setting="model.weight.data.fill_(NAN); nn.init.zeros_(model.weight)")
    ).assert_silent()


def test_poisoned_running_mean_alarms_despite_finite_gradients(tmp_path):
    got = training(
        tmp_path,
        """
        norm = nn.BatchNorm1d(4)
        net = nn.Sequential(model, norm) if False else model
        net.norm = norm
        for i, x in enumerate(batches):
            opt.zero_grad()
            if i == 3:
                norm(x * NAN)        # its output is thrown away; its running statistics stay
            loss_of(x).backward()
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]) == (3, {"kind": "buffer", "name": "norm.running_mean"}), got.text()
