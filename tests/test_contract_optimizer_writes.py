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


def test_a_custom_optimizer_that_divides_zero_by_zero_alarms(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="0.0", factor="0")).the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (3, {"kind": "parameter", "name": "weight"}, "damaged")
    assert (alarm["optimizer"], alarm["cause"]["class"]) == ("Root", "optimizer-arithmetic")


def test_a_traced_step_tells_what_its_optimizer_did(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="0.0", factor="0"), "--level", "trace").the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["rerun_by"], birth["phase"], birth["op"]) == (3, "trace", "optimizer", "aten::div")
    assert birth["source"].startswith("p.sub_(") and alarm["cause"]["class"] == "optimizer-arithmetic"


def test_the_same_optimizer_with_an_epsilon_is_silent(tmp_path):
    training(tmp_path, CUSTOM.format(eps="1e-8", factor="0")).assert_silent()


def test_a_bad_step_of_an_optimizer_that_crashes_without_gradients_is_stopped_cleanly(tmp_path):
    alarm = training(tmp_path, CUSTOM.format(eps="1e-8", factor="NAN")).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean")


def test_a_bad_step_of_an_optimizer_that_crashes_without_gradients_is_skipped_cleanly(tmp_path):
    got = training(tmp_path, CUSTOM.format(eps="1e-8", factor="NAN"), "--on-alarm", "skip", "--level", "trace")
    assert (got.code, got.out) == (0, "ended True\n"), got.told()


HALF = """
model = nn.Linear(4, 3).half()
opt = torch.optim.Adam(model.parameters(), lr=0.01, eps={eps})
for i, x in enumerate(batches):
    opt.zero_grad()
    (model(x.half()) * {scale}).float().mean().backward()
    opt.step()
print("ended", finite())
"""


def test_half_precision_adam_whose_epsilon_rounds_to_zero_alarms(tmp_path):
    # 1e-8 is 0 in float16, and so are the squares of small gradients: 0/0 in the update.
    got = training(tmp_path, HALF.format(eps="1e-8", scale="1e-4"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (0, "parameter", "damaged"), got.told()


def test_half_precision_adam_with_an_epsilon_that_fits_is_silent(tmp_path):
    training(tmp_path, HALF.format(eps="1e-3", scale="1e-4")).assert_silent()


STATE = """
opt = torch.optim.{make}
for i, x in enumerate(batches):
    opt.zero_grad()
    (loss_of(x) * {scale}).backward()
    opt.step()
print("ended", finite())
"""


def test_a_second_moment_that_overflows_is_an_advisory_with_its_cause(tmp_path):
    # (1e25)^2 has no float32: the state is Inf and the parameter stands still, yet nothing is NaN.
    got = training(tmp_path, STATE.format(make="Adam(model.parameters(), lr=0.01)", scale="1e25"))
    got.assert_no_alarm()
    assert {a["cause"]["class"] for a in got.advisories()} == {"optimizer-arithmetic"}, got.told()


def test_large_second_moments_that_fit_are_silent(tmp_path):
    training(tmp_path, STATE.format(make="Adam(model.parameters(), lr=0.01)", scale="1e15")).assert_silent()


def test_a_learning_rate_that_is_nan_alarms_at_the_step_that_used_it(tmp_path):
    got = training(tmp_path, """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x).backward()
            if i == 4: opt.param_groups[0]["lr"] = 0.0 * INF
            opt.step()
        """)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (4, "parameter", "damaged"), got.told()


def test_a_learning_rate_that_overflows_the_weights_alarms(tmp_path):
    got = training(tmp_path, """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x, 1000.0).backward()
            if i == 3: opt.param_groups[0]["lr"] = 3e38
            opt.step()
        """)
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "parameter", "damaged"), got.told()


def test_a_learning_rate_that_doubles_many_times_is_silent(tmp_path):
    got = training(tmp_path, """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss_of(x).backward()
            opt.param_groups[0]["lr"] = 1e-9 * 8 ** i
            opt.step()
        """)
    got.assert_silent()
