"""Parameters that are no longer finite although every gradient was: found, put down to the step that wrote them,
undone."""

import pytest

from helpers import TRAINING, plain, training, write_script
from replayed_alone import replayed

ROOT = """
class Root(torch.optim.Optimizer):
    '''p -= lr * g / sqrt(g): 0/0 where a gradient is zero.'''
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr, moves=0))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["moves"] += 1
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 0.5)
                self.state[p]["calls"] = self.state[p].get("calls", 0) + 1
                p.sub_(group["lr"] * p.grad / p.grad.abs().sqrt())
model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3))
opt = Root(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.9)
def parts():
    yield from model.state_dict().items()
    for i, state in opt.state_dict()["state"].items():
        yield from ((str(i) + k, torch.as_tensor(v)) for k, v in state.items())
    for group in opt.param_groups:
        yield from ((k, torch.tensor(float(v))) for k, v in group.items() if k != "params")
    yield "epoch", torch.tensor(scheduler.last_epoch)
    yield "random", torch.get_rng_state()
def digest():
    import hashlib
    return hashlib.sha256(b"".join(k.encode() + v.numpy().tobytes() for k, v in parts())).hexdigest()
FAULT, LEFT_OUT = {fault}, {left_out}
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(48, 4)), batch_size=8, shuffle=True)
for i, (x,) in enumerate(data):
    if i == LEFT_OUT:
        continue
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    if i == FAULT:
        loss = loss * 0
    loss.backward()
    try:
        opt.step()
    except FloatingPointError:
        print("raised", finite())
        raise
    scheduler.step()
print(digest(), finite())
"""


def root(folder, *options, fault=3, left_out=-1):
    return training(folder, ROOT.replace("{fault}", str(fault)).replace("{left_out}", str(left_out)), *options)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_step_ruined_by_optimizer_is_undone_from_copy(tmp_path, policy):
    undone = root(tmp_path, "--on-alarm", policy, "--undo-mb", "8")
    reference = root(tmp_path, fault=-1, left_out=3)
    alarm = undone.the_alarm()
    assert (alarm["step"], alarm["weights"], alarm["action"]) == (3, "clean", "the step was undone"), undone.text()
    assert (undone.code, undone.out) == (0, reference.out)
    assert undone.out.endswith("True\n")
    assert undone.err.count("undone") == 1, "said once"
    bad = [
        e["outcome"].split(": ", 1)[1].split(", ")
        for e in alarm["cause"]["experiments"]
        if e["outcome"].startswith("not finite: parameter")
    ]
    assert bad and all(len(names) == len(set(names)) for names in bad), alarm["cause"]["experiments"]


def test_undo_copy_changes_nothing_in_healthy_run(tmp_path):
    with_copy, without = root(tmp_path, "--undo-mb", "8", fault=-1), root(tmp_path, fault=-1)
    with_copy.assert_silent()
    assert with_copy.out == without.out


def test_stop_undoes_before_it_raises(tmp_path):
    got = root(tmp_path, "--on-alarm", "stop", "--undo-mb", "8")
    assert got.the_alarm()["weights"] == "clean" and got.out == "raised True\n" and got.code == 1
    assert "; the step was undone" in got.err.rstrip().splitlines()[-1], got.text()


def test_rollback_without_a_copy_stops_with_the_reason(tmp_path):
    got = root(tmp_path, "--on-alarm", "rollback")
    alarm = got.the_alarm()
    assert (alarm["weights"], got.out, got.code) == ("damaged", "raised False\n", 1)
    assert "--undo-mb" in alarm["text"]


def test_too_small_undo_budget_is_reported_once(tmp_path):
    big = (
        "model = nn.Linear(600, 600)\nopt = torch.optim.Adam(model.parameters())\n"
        "for i in range(3): opt.zero_grad(); loss_of(torch.randn(4, 600)).backward(); opt.step()\n"
    )
    got = training(tmp_path, big, "--undo-mb", "1")
    assert got.code == 0 and got.err.count("copies take 5 MB, --undo-mb gives 1") == 1, got.text()
    assert "copies take" not in training(tmp_path, big, "--undo-mb", "8").err


UNUSED_ROW = """
table = nn.Embedding(50, 4)
opt = torch.optim.SGD(list(table.parameters()) + list(model.parameters()), lr=0.1)
for i in range(100):
    opt.zero_grad()
    loss_of(table(torch.arange(8))).backward()
    opt.step()
    if i == 20:
        table.weight.data[40] /= {divisor}
"""


def test_damage_invisible_in_loss_surfaces_within_64_steps(tmp_path):
    got = training(tmp_path, UNUSED_ROW.format(divisor="torch.zeros(4)"), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert alarm["sink"]["kind"] == "parameter" and alarm["weights"] == "damaged", got.text()
    assert 21 <= alarm["step"] <= 21 + 65, got.text()


def test_a_script_that_writes_finite_values_is_silent(tmp_path):
    training(tmp_path, UNUSED_ROW.format(divisor="2"), "--on-alarm", "stop").assert_silent()


THAWED = """
late = nn.Parameter(torch.ones(3), requires_grad=False)
opt = torch.optim.Adam([*model.parameters(), late], lr=0.01, eps={eps})
for i, x in enumerate(batches * 2):
    late.requires_grad_(i >= 5)
    opt.zero_grad()
    (model(x) + 0 * late).pow(2).mean().backward()
    opt.step()
"""


def test_step_that_ruined_a_parameter_is_named(tmp_path):
    got = training(tmp_path, THAWED.format(eps=0.0), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (5, "parameter", "damaged"), got.text()
    assert alarm["births"][0]["phase"] == "optimizer" and alarm["births"][0]["source"] == "opt.step()", alarm["births"]
    assert alarm["cause"]["class"] == "optimizer-arithmetic"


def test_the_same_with_an_epsilon_is_silent(tmp_path):
    training(tmp_path, THAWED.format(eps=1e-8), "--on-alarm", "stop").assert_silent()


VANISHED = """
class Norm(nn.Module):
    def forward(self, x):
        h = x{half}
        return (h * torch.rsqrt(h.pow(2).mean(1, keepdim=True) + 1e-6)).float()
model = nn.Sequential(nn.Linear(4, 8, bias=False), Norm(), nn.Linear(8, 1, bias=False))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i, x in enumerate(batches):
    opt.zero_grad()
    (model(x * (3000 if i >= 3 else 1)) - 1).pow(2).mean().backward()
    opt.step()
"""


@pytest.mark.parametrize("level", ["gate", "trace"])
def test_swallowed_overflow_without_gradient_is_an_advisory(tmp_path, level):
    got = training(tmp_path, VANISHED.format(half=".half()"), "--level", level)
    got.assert_no_alarm()
    (advisory,) = got.advisories()
    birth = advisory["births"][0]
    assert (advisory["kind"], advisory["step"]) == ("swallowed-overflow", 3)
    assert (birth["op"], birth["absorbed_by"]["op"]) == ("aten::pow", "aten::rsqrt")
    assert advisory["cause"]["class"] == "half-precision-overflow"


def test_the_same_in_single_precision_is_silent(tmp_path):
    training(tmp_path, VANISHED.format(half=""), "--on-alarm", "stop").assert_silent()


def test_legitimately_zero_gradients_are_silent(tmp_path):
    # Every margin is kept from the fourth step on: the hinge is 0, with a constant beside it.
    training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            (torch.relu(model(x) - (1e6 if i >= 3 else -1e3)).mean() + 1).backward()
            opt.step()
        """,
        "--on-alarm",
        "stop",
    ).assert_silent()
    assert not [*tmp_path.glob("finitude-runs/*/step-*")], "a capsule of a step that nothing is wrong with"


RESTORED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("mask", torch.zeros(8))
    def forward(self, x):
        h = self.norm(self.inner(x))
        self.mask[3:] = float("-inf")
        return self.out(torch.softmax(h + self.mask, 1)) * self.scale
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
def restore(values):
    net.load_state_dict(values)
for i, x in enumerate(batches):
    if i == 5:
        values = {k: v.clone() for k, v in net.state_dict().items()}
        {fault}
    opt.zero_grad()
    net(x).pow(2).mean().backward()
    opt.step()
"""


def restored(folder, fault):
    return training(folder, RESTORED.replace("{fault}", fault), "--on-alarm", "stop")


HALVED = "values = {k: torch.from_numpy(v.numpy().astype('float16')) for k, v in values.items()}; "


@pytest.mark.parametrize(
    "fault, held, source",
    [
        ('values["out.weight"][0, 3] = float("nan"); restore(values)', "out.weight", "net.load_state_dict(values)"),
        pytest.param(
            'values["scale"][1] = float("inf"); restore(values)',
            "scale",
            "net.load_state_dict(values)",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            'values["scale"][:] = float("-inf"); restore(values)',
            "scale",
            "net.load_state_dict(values)",
            marks=pytest.mark.thorough,
        ),
        (
            'values["scale"] = torch.tensor([1.0, 7e4]); ' + HALVED + "restore(values)",
            "scale",
            "net.load_state_dict(values)",
        ),
        ('net.out.weight.data[0, 0] = float("inf")', "out.weight", None),
        pytest.param('net.out.weight.data.fill_(float("inf"))', "out.weight", None, marks=pytest.mark.thorough),
        ('net.scale.data.mul_(float("inf"))', "scale", None),
    ],
    ids=["NaN", "Inf beside one value", "all -Inf", "from half precision", "in place", "filled", "multiplied"],
)
def test_parameter_ruined_between_steps_names_the_script_line(tmp_path, fault, held, source):
    got = restored(tmp_path, fault)
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], birth["phase"], birth["name"], alarm["cause"]["class"]) == (
        5,
        "state",
        held,
        "corrupted-state",
    ), got.text()
    assert birth["source"] == (source or fault) and alarm["fix"]["line"] == birth["line"], birth
    assert alarm["action"] == "stopped before the optimizer" and "step 5 stopped before the optimizer" in got.err
    assert alarm["weights"] == "damaged" and replayed(got)["step"] == 5


@pytest.mark.parametrize(
    "begin, fault, level, source",
    [
        (5, 'values["out.weight"][0, 3] = float("nan"); restore(values)', "trace", "net.load_state_dict(values)"),
        (5, 'net.scale.data.mul_(float("inf"))', "trace", 'net.scale.data.mul_(float("inf"))'),
        (5, 'net.out.weight.data[0, 0] = float("inf")', "gate", ""),
        (0, 'net.out.weight.data[0, 0] = float("inf")', "gate", ""),
    ],
)
def test_watch_names_the_write_of_the_script_where_its_level_shows_it(tmp_path, begin, fault, level, source):
    """Its program cannot be started again; a level is advised only where it helps."""
    watch = f"import finitude; w = finitude.watch(net, opt, level={level!r})\n"
    source_text = RESTORED.replace("{fault}", fault).replace("i == 5", f"i == {begin}")
    write_script(tmp_path, TRAINING + source_text.replace("def restore", watch + "def restore"))
    got = plain(tmp_path, "train.py")
    line = next((li for li in got.err.splitlines() if li.startswith("finitude.errors.NonFiniteError")), "")
    said = " ".join(got.err.split())
    assert got.code == 1 and f"step {begin}: " in line and "--level trace" not in said.replace("(--level trace)", "")
    assert ('or with finitude.watch(level="trace")' in said) == (level == "gate" and begin > 0), got.text()
    assert not source or source in said and "written by the script between two steps; born in" in line, got.text()


def test_ruined_running_statistic_is_traced_to_loading_line(tmp_path):
    got = restored(tmp_path, 'values["norm.running_mean"][0] = float("nan"); restore(values); net.eval()')
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["name"], alarm["cause"]["class"]) == (
        "state",
        "norm.running_mean",
        "corrupted-state",
    ), got.text()
    assert birth["source"] == "net.load_state_dict(values)"


def test_loaded_mask_in_a_buffer_is_not_blamed(tmp_path):
    restored(tmp_path, "restore(values)").assert_silent()
    got = restored(tmp_path, "restore(values); x = x * float('nan')")
    assert got.the_alarm()["births"][0]["phase"] != "state", got.text()


def test_parameter_ruined_by_arithmetic_is_born_there(tmp_path):
    got = restored(tmp_path, 'values["scale"] = torch.log(values["scale"] - 5); restore(values)')
    birth = got.the_alarm()["births"][0]
    assert birth["op"] == "aten::log", birth


def test_script_write_into_state_is_no_parameter_write(tmp_path):
    body = """
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i, x in enumerate(batches):
        opt.zero_grad()
        loss_of(x).backward()
        if i == 3:
            opt.state[model.weight]["exp_avg"][1, 2] = NAN
        opt.step()
    """
    alarm = training(tmp_path, body, "--on-alarm", "stop").the_alarm()
    assert (alarm["step"], alarm["sink"]["name"]) == (3, "weight"), alarm
    assert "written by step 3 of Adam" in alarm["text"] and "by the script" not in alarm["text"], alarm["text"]
    assert '["exp_avg"][1, 2] = NAN' in alarm["births"][0]["source"], alarm["births"]


CLIPPED_BY_A_NUMBER = """
for i, x in enumerate(batches):
    opt.zero_grad()
    (model(x).mean() * (1e22 if i >= 3 else 1)).backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    for p in model.parameters(): p.grad.mul_(min(1.0, 1 / (norm.item() + 1e-6)))
    opt.step()
"""


def test_overflow_zeroed_in_python_is_an_advisory(tmp_path):
    got = training(tmp_path, CLIPPED_BY_A_NUMBER, "--on-alarm", "stop")
    got.assert_no_alarm()
    (advisory,) = got.advisories()
    assert (advisory["kind"], advisory["step"]) == ("swallowed-overflow", 3), got.text()
    assert advisory["births"][0]["op"] == "aten::pow" and "in Python" in advisory["text"], got.text()


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_weights_that_an_applied_step_left_bad_are_put_down_to_it(tmp_path, kind):
    """No checkpoint is to blame."""
    body = f"""
model = nn.Linear(4, 4)
opt = torch.optim.{kind}(model.parameters(), lr=0.01)
for i in range(6):
    opt.zero_grad()
    (model(torch.rand(8, 4)) * (i != 3)).pow(2).sum(1).sqrt().mean().backward()
    opt.step()
"""
    run = training(tmp_path, body, "--on-alarm", "warn", "--capsules", "0")
    first, second, *_ = run.alarms
    assert (first["step"], second["step"]) == (3, 4) and first["cause"]["class"] == "domain-edge"
    assert second["births"][0]["phase"] == "state", second["births"]
    assert second["cause"]["text"].endswith("; step 3 of this run was bad and was applied"), second["cause"]
    assert second["fix"]["text"].startswith("mend what made step 3 bad") and not second["fix"]["line"], second["fix"]


BY_ITSELF = """
class Bare(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]: p.sub_(0.1 * p.grad / p.grad.abs().sqrt())
opt = Bare(model.parameters(), {{}})
"""


@pytest.mark.parametrize(
    "begin, line, at",
    [
        (BY_ITSELF.format(), "loss = loss * 0 if i == 0 else loss", 0),
        ("", "if i == 3: model.weight.data[0, 0] = NAN", 3),  # found before the next step is applied
    ],
    ids=["the optimizer", "the script"],
)
def test_weights_that_an_alarm_was_about_are_put_down_to_it(tmp_path, begin, line, at):
    """Under skip they stay bad, and no checkpoint is to blame."""
    body = f"""
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    {line}
    loss.backward()
    opt.step()
"""
    got = training(tmp_path, begin + body, "--on-alarm", "skip", "--capsules", "0", "--experiments", "0")
    first, second = got.alarms[:2]
    assert first["weights"] == "damaged" and first["step"] == at, got.text()
    assert ("by the script between two steps" in first["text"]) == (at == 3), first["text"]
    assert second["cause"]["text"].endswith(f"; that is what the alarm of step {at} is about"), got.text()
    assert second["fix"]["text"].startswith(f"mend what the alarm of step {at} names") and not second["fix"]["line"]
