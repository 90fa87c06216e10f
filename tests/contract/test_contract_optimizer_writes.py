"""A NaN that the optimizer itself makes, out of finite gradients, is found in what it wrote."""

from helpers import training

CUSTOM = """
class Root(torch.optim.Optimizer):
    '''p -= lr * g / sqrt(g): 0/0 where a gradient is zero. Does not expect p.grad to be None.'''
    def __init__(self, params, lr, eps=0.0):
        super().__init__(params, dict(lr=lr, eps=eps))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / (p.grad.abs().sqrt() + group["eps"]))
opt = Root(model.parameters(), lr=0.01, eps={eps})
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i == 3: loss = loss * {factor}
    loss.backward()
    opt.step()
print("ended", finite())
"""


def test_custom_optimizer_dividing_zero_by_zero_alarms(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="0.0", factor="0")).the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (3, {"kind": "parameter", "name": "weight"}, "damaged")
    assert (alarm["optimizer"], alarm["cause"]["class"]) == ("Root", "optimizer-arithmetic")


def test_traced_step_shows_what_its_optimizer_did(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="0.0", factor="0"), "--level", "trace").the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["rerun_by"], birth["phase"], birth["op"]) == (3, "trace", "optimizer", "aten::div")
    assert birth["source"].startswith("p.sub_(") and alarm["cause"]["class"] == "optimizer-arithmetic"


def test_the_same_optimizer_with_an_epsilon_is_silent(tmp_path):
    training(tmp_path, CUSTOM.format(eps="1e-8", factor="0")).assert_silent()


def test_bad_step_of_gradient_requiring_optimizer_stops_cleanly(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="1e-8", factor="NAN")).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean")


def test_bad_step_of_gradient_requiring_optimizer_skips_cleanly(tmp_path):
    got = training(tmp_path, CUSTOM.format(eps="1e-8", factor="NAN"), "--on-alarm", "skip", "--level", "trace")
    assert (got.code, got.out) == (0, "ended True\n"), got.text()


HALF = """
model = nn.Linear(4, 3).half()
opt = torch.optim.Adam(model.parameters(), lr=0.01, eps={eps})
for i, x in enumerate(batches):
    opt.zero_grad()
    (model(x.half()) * {scale}).float().mean().backward()
    opt.step()
print("ended", finite())
"""


def test_half_precision_adam_with_underflowing_epsilon_alarms(tmp_path):
    # 1e-8 is 0 in float16, and so are the squares of small gradients: 0/0 in the update.
    got = training(tmp_path, HALF.format(eps="1e-8", scale="1e-4"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (0, "parameter", "damaged"), got.text()


def test_half_precision_adam_with_representable_epsilon_is_silent(tmp_path):
    training(tmp_path, HALF.format(eps="1e-3", scale="1e-4")).assert_silent()


STATE = """
opt = torch.optim.{make}
for i, x in enumerate(batches):
    opt.zero_grad()
    (loss_of(x) * {scale}).backward()
    opt.step()
print("ended", finite())
"""


def test_overflowing_second_moment_is_advisory_with_its_cause(tmp_path):
    # (1e25)^2 has no float32: the state is Inf and the parameter stands still, yet nothing is NaN.
    got = training(tmp_path, STATE.format(make="Adam(model.parameters(), lr=0.01)", scale="1e25"))
    got.assert_no_alarm()
    assert {a["cause"]["class"] for a in got.advisories()} == {"optimizer-arithmetic"}, got.text()


def test_large_second_moments_that_fit_are_silent(tmp_path):
    training(tmp_path, STATE.format(make="Adam(model.parameters(), lr=0.01)", scale="1e15")).assert_silent()


def test_nan_learning_rate_alarms_at_its_step(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x).backward()
            if i == 4: opt.param_groups[0]["lr"] = 0.0 * INF
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (4, "parameter", "damaged"), got.text()


def test_a_learning_rate_that_overflows_the_weights_alarms(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x, 1000.0).backward()
            if i == 3: opt.param_groups[0]["lr"] = 3e38
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "parameter", "damaged"), got.text()


def test_repeatedly_multiplied_learning_rate_is_silent(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x).backward()
            opt.param_groups[0]["lr"] = 1e-9 * 8 ** i
            opt.step()
        """,
    )
    got.assert_silent()


# -- the last steps, which no later one looks back at -----------------------------------------------------------------

LAST = """
opt = torch.optim.Adam(model.parameters(), lr=0.01, eps={eps})
for i, x in enumerate(batches):
    opt.zero_grad()
    if i == 5:
        x = x * torch.tensor([1.0, 1.0, 1.0, 0.0])  # no gradient reaches the last column
        opt.state.clear()
    loss_of(x).backward()
    opt.step()
{after}
print("ended")
"""


def test_writes_of_last_step_are_checked_at_exit(tmp_path):
    got = training(tmp_path, LAST.format(eps="0.0", after=""), "--on-alarm", "stop")
    alarm, birth = got.the_alarm(), got.the_alarm()["births"][0]
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (
        5,
        {"kind": "parameter", "name": "weight"},
        "damaged",
    ), got.text()
    assert (birth["phase"], birth["op"], birth["source"]) == ("optimizer", "aten::addcdiv_", "opt.step()"), got.text()
    assert got.code == 1 and got.out == "ended\n", got.text()
    training(tmp_path, LAST.format(eps="1e-8", after=""), "--on-alarm", "stop").assert_silent()


def test_script_write_after_last_step_is_located(tmp_path):
    spoil = "with torch.no_grad(): model.bias[1] = NAN"
    got = training(tmp_path, LAST.format(eps="1e-8", after=spoil), "--on-alarm", "stop")
    alarm = got.the_alarm()
    assert (alarm["sink"], alarm["births"][0]["source"]) == ({"kind": "parameter", "name": "bias"}, spoil), got.text()


def test_frozen_or_allowed_weights_are_unchecked_at_exit(tmp_path):
    frozen = "opt.param_groups[0]['params'][1].requires_grad_(False)[0] = NAN"
    training(tmp_path, LAST.format(eps="1e-8", after=frozen), "--on-alarm", "stop").assert_silent()


def test_state_overflow_in_last_steps_is_reported(tmp_path):
    spoil = "next(iter(opt.state.values()))['exp_avg_sq'][0].fill_(INF)"
    got = training(tmp_path, LAST.format(eps="1e-8", after=spoil), "--on-alarm", "stop")
    assert not got.alarms and got.code == 0, got.text()
    (advisory,) = got.advisories("optimizer-state-overflow")
    assert "weight.exp_avg_sq overflowed to Inf" in advisory["text"], got.text()
