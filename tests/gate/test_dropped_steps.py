"""Steps that the script drops itself: a few are its own business, many in a row are a run that has stopped learning."""

import pytest

from helpers import training

LOOP = """
for i in range({steps}):
    x = batches[i % 6]
    opt.zero_grad()
    loss = loss_of(x)
    if {bad}: loss = loss {fault}
    loss.backward()
    {treatment}
    opt.step()
print("ended", finite())
"""
NAN_LOSS, BAD_GRADIENT, LARGE = "* NAN", "+ 0 * ENDLESS_SLOPE", "+ 1e30 * model(x).sum()"
NORM = "if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)): continue"
TREATMENTS = {
    "by the norm": NORM,
    "by a look at the gradients": "if not torch.isfinite(model.weight.grad).all(): continue",
    "zeroed and stepped": "[p.grad.nan_to_num_(0, 0, 0) for p in model.parameters()]",
}


def loop(treatment=NORM, fault=NAN_LOSS, bad="i > 2", steps=30):
    return LOOP.format(treatment=treatment, fault=fault, bad=bad, steps=steps)


@pytest.mark.parametrize("fault", [NAN_LOSS, BAD_GRADIENT], ids=["loss", "gradient"])
@pytest.mark.parametrize("treatment", TREATMENTS.values(), ids=TREATMENTS)
def test_max_skips_consecutive_drops_are_an_alarm(tmp_path, treatment, fault):
    if "nan_to_num" in treatment and fault == BAD_GRADIENT:
        fault = NAN_LOSS.replace("* NAN", "* INF - INF")
    got = training(tmp_path, loop(treatment, fault), "--on-alarm", "raise", "--max-skips", "5")
    alarm = got.the_alarm()
    assert (got.code, alarm["step"], alarm["weights"], alarm["action"]) == (1, 3, "clean", "stopped"), got.text()
    assert "dropped 5 steps in a row" in alarm["text"] and "all finite" not in got.err, got.text()
    assert got.watched["handled_by_script"] == 5 and "5 handled by the script" in " ".join(got.err.split()), got.text()


SUMS = """
for i in range(30):
    opt.zero_grad()
    for micro in range(3):
        loss = loss_of(batches[(i + micro) % 6])
        if i > 2 and micro == MICRO: loss = loss * NAN
        loss.backward()
    TREATMENT
    opt.step()
"""
ROWS = {
    "one by one": loop(),
    "of sums": SUMS.replace("MICRO", "1").replace("TREATMENT", NORM),
    "of sums that are zeroed": SUMS.replace("MICRO", "2").replace("TREATMENT", TREATMENTS["zeroed and stepped"]),
}


@pytest.mark.parametrize("body", ROWS.values(), ids=ROWS)
def test_dropped_steps_are_explained_with_the_same_bits(tmp_path, body):
    got = training(tmp_path, body, "--max-skips", "4")
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::mul" and "loss * NAN" in alarm["births"][0]["source"], got.text()
    assert (alarm["rerun"], alarm["rerun_by"], alarm["rerun_verified"]) == ("persistent", "restart", True), alarm[
        "rerun_text"
    ]


def test_run_continues_under_warn_and_all_are_counted(tmp_path):
    got = training(tmp_path, loop(), "--on-alarm", "warn", "--max-skips", "4")
    assert (got.code, got.out) == (0, "ended True\n") and len(got.alarms) == 1, got.text()
    assert got.watched["handled_by_script"] == 27 and "all finite" not in got.err, got.text()


def test_overflowing_norm_that_drops_finite_gradients_alarms(tmp_path):
    got = training(tmp_path, loop(NORM, LARGE, "i > 2"), "--on-alarm", "stop", "--max-skips", "5")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["cause"]["class"]) == (3, "clipping") and "norm overflowed" in alarm["text"], (
        got.text()
    )
    assert alarm["births"][0]["source"] == NORM and got.watched["handled_by_script"] == 5, got.text()


def test_few_steps_dropped_for_their_norm_are_counted(tmp_path):
    got = training(tmp_path, loop(NORM, LARGE, "i % 5 == 2"), "--on-alarm", "stop")
    got.assert_no_alarm()
    assert got.watched["handled_by_script"] == 6 and "all finite" not in got.err, got.text()


def test_steps_dropped_before_an_alarm_stay_counted(tmp_path):
    treatment = "if i < 5 and not torch.isfinite(model.weight.grad).all(): continue"
    got = training(tmp_path, loop(treatment, NAN_LOSS, "i in (3, 4, 5)"), "--on-alarm", "stop")
    assert got.the_alarm()["step"] == 3 and got.watched["handled_by_script"] == 2, got.text()
    assert "0 scaler skips, 2 handled by the script" in " ".join(got.err.split()), got.err


ACCUMULATED = """
for i in range(40):
    opt.zero_grad()
    for x in batches[:3]:
        loss = loss_of(x) / 3
        if i > 2 and x is batches[1]: loss = loss * NAN
        loss.backward()
    if {check}: continue
    opt.step()
"""


def test_a_window_of_several_backwards_counts_once(tmp_path):
    check = "not all(p.grad.isfinite().all() for p in model.parameters())"
    got = training(tmp_path, ACCUMULATED.format(check=check), "--on-alarm", "raise", "--max-skips", "5")
    assert got.the_alarm()["step"] == 3 and "dropped 5 steps in a row" in got.the_alarm()["text"], got.text()


SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
for i in range(60):
    opt.zero_grad()
    loss = loss_of(batches[i % 6])
    if {bad}: loss = loss {fault}
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        scaler.update()
        continue
    scaler.step(opt)
    scaler.update()
print("ended", finite())
"""


def test_steps_dropped_under_unused_scaler_are_an_alarm(tmp_path):
    got = training(tmp_path, SCALED.format(bad="i > 2", fault=NAN_LOSS), "--on-alarm", "raise")
    assert got.the_alarm()["step"] == 3 and "dropped 10 steps" in got.the_alarm()["text"], got.text()


def test_scale_search_by_the_script_is_no_alarm(tmp_path):
    got = training(tmp_path, SCALED.format(bad="3 < i < 17", fault=BAD_GRADIENT), "--on-alarm", "raise")
    got.assert_no_alarm()
    assert got.out == "ended True\n" and got.watched["handled_by_script"] == 13, got.text()


OWN_SCALE = """
scale = 2.0**120
model.weight.register_hook(lambda g: g * 1e12)   # as in half precision: the gradients overflow before the loss does
for i in range(40):
    opt.zero_grad()
    scaled = loss_of(batches[i % 6]) * scale
    scaled.backward()
    if not all(p.grad.isfinite().all() for p in model.parameters()):
        {then}
        continue
    for p in model.parameters(): p.grad /= scale
    model.weight.grad /= 1e12
    opt.step()
print("ended", finite())
"""


def test_scale_search_by_own_scaler_is_no_alarm(tmp_path):
    got = training(tmp_path, OWN_SCALE.format(then="scale /= 4"), "--on-alarm", "stop")
    got.assert_no_alarm()
    assert got.out == "ended True\n" and got.watched["handled_by_script"] == 17, got.text()


def test_a_scale_that_stays_is_no_search(tmp_path):
    got = training(tmp_path, OWN_SCALE.format(then="pass"), "--on-alarm", "raise")
    assert "dropped 10 steps in a row" in got.the_alarm()["text"], got.text()


TWO = """
other = nn.Linear(3, 3)
critic = torch.optim.SGD(other.parameters(), lr=0.1)
for i in range(30):
    x = batches[i % 6]
    critic.zero_grad()
    other(model(x).detach()).pow(2).mean().backward()
    critic.step()
    opt.zero_grad()
    loss = loss_of(x)
    if {bad}: loss = loss * NAN
    loss.backward()
    if not torch.isfinite(model.weight.grad).all(): continue
    opt.step()
print("ended", finite())
"""


def test_other_stepping_optimizer_does_not_hide_dropped_steps(tmp_path):
    got = training(tmp_path, TWO.format(bad="i > 4"), "--on-alarm", "raise")
    assert (got.the_alarm()["step"], got.the_alarm()["sink"]["kind"]) == (5, "loss"), got.text()


INNOCENT = {
    "some dropped": loop(bad="i % 3 == 1", steps=60),
    "nine in a row": loop(bad="2 < i < 12", steps=30),
    "accumulation": """
for i in range(90):
    loss_of(batches[i % 6]).backward()
    if i % 15 == 14:
        opt.step(); opt.zero_grad()
""",
    "a penalty by autograd.grad": """
for i in range(20):
    x = batches[i % 6].clone().requires_grad_()
    opt.zero_grad()
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (loss_of(x) + slope.pow(2).sum()).backward()
    opt.step()
""",
    "backward for evaluation": """
for i in range(20):
    opt.zero_grad(); loss_of(batches[i % 6]).backward(); opt.step()
    for x in batches:
        x = x.clone().requires_grad_()
        model(x).sum().backward()
        opt.zero_grad()
""",
    "parameters of an optimizer that is used no more": """
later = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(90):
    opt.zero_grad()
    (loss_of(batches[i % 6]) * (NAN if i % 4 == 2 else 1)).backward()
    if not torch.isfinite(model.weight.grad).all(): continue
    (opt if i < 8 else later).step()
""",
}


@pytest.mark.parametrize("body", INNOCENT.values(), ids=INNOCENT)
def test_what_still_learns_is_no_alarm(tmp_path, body):
    got = training(tmp_path, body, "--on-alarm", "stop")
    got.assert_no_alarm()


@pytest.mark.parametrize("steps", [12, 8])
def test_dropped_last_steps_are_not_called_all_finite(tmp_path, steps):
    got = training(tmp_path, loop(bad="i > 2", steps=steps), "--on-alarm", "raise", "--max-skips", "20")
    got.assert_no_alarm()
    assert got.watched["handled_by_script"] == steps - 3, got.text()
    assert "all finite" not in got.err and f"{steps - 3} bad steps handled by the script" in got.err, got.err


@pytest.mark.parametrize("last", [34, 3])
def test_unapplied_finite_gradients_are_not_called_all_finite(tmp_path, last):
    got = training(
        tmp_path,
        f"""
        for i in range(40):
            opt.zero_grad()
            loss_of(batches[i % 6]).backward()
            if i >= {40 - last}: continue
            opt.step()
        """,
        "--on-alarm",
        "raise",
    )
    got.assert_no_alarm()
    assert "all finite" not in got.err and f"the last {last} applied by no step" in got.err, got.err


def test_last_window_dropped_for_its_norm_counts(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(9):
            opt.zero_grad()
            (loss_of(batches[i % 6]) * (1e25 if i > 5 else 1)).backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                opt.step()
        """,
    )
    got.assert_no_alarm()
    assert got.watched["handled_by_script"] == 3 and "all finite" not in got.err, got.text()


@pytest.mark.parametrize(
    "rest",
    [
        "loss_of(batches[0]).backward()",  # gradients to look at
        "for x in batches[:3]: loss_of(x).backward()",  # a sum that the end of the data leaves open
    ],
)
def test_a_last_backward_for_itself_is_finite(tmp_path, rest):
    got = training(
        tmp_path,
        f"""
        for i in range(6):
            opt.zero_grad()
            for x in batches[:4]: loss_of(x).backward()
            opt.step()
        opt.zero_grad()
        {rest}
        """,
    )
    got.assert_silent()
    assert "all finite" in got.err, got.err


def test_drops_count_after_their_optimizer_is_gone(tmp_path):
    body = "def train():\n" + "\n".join(
        "    " + line
        for line in (
            "model = nn.Linear(4, 3)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)" + loop(bad="i > 2", steps=9)
        ).splitlines()
    )
    body = body.replace("loss = loss_of(x)", "loss = (model(x) - 1).pow(2).mean()").replace("finite()", "'well'")
    got = training(tmp_path, body + "\ntrain()", "--on-alarm", "raise")
    got.assert_no_alarm()
    assert got.watched["handled_by_script"] == 6 and "all finite" not in got.err, got.text()


LONG_ROW = """
import math
for i, x in enumerate(batches * 6):
    loss = loss_of(x)
    if 3 <= i < {last}: loss = loss * NAN
    if not {check}: continue
    opt.zero_grad()
    loss.backward()
    opt.step()
print("ended", finite())
"""
LOOK = "math.isfinite(loss.item())"


@pytest.mark.parametrize("last, skips", [(30, "10"), (8, "5")])
def test_dropped_loss_series_stops_the_run(tmp_path, last, skips):
    got = training(tmp_path, LONG_ROW.format(last=last, check=LOOK), "--on-alarm", "stop", "--max-skips", skips)
    alarm = got.the_alarm()
    assert (got.code, got.out, got.watched["handled_by_script"]) == (1, "", int(skips)), got.text()
    assert f"dropped {skips} steps in a row by itself: the loss was not finite; nothing has" in alarm["text"], (
        got.text()
    )
    assert (alarm["step"], alarm["births"][0]["op"], alarm["rerun"]) == (3, "aten::mul", "persistent"), alarm


# A loss of several elements may be parts of one: no row of it is known before a finite one is applied.
@pytest.mark.parametrize(
    "last, skips, check, alarms",
    [(8, "6", LOOK, 0), (8, "5", "torch.isfinite(loss.reshape(1, 1).expand(2, 1)).all()", 1)],
    ids=["few", "elements"],
)
def test_dropped_loss_series_after_which_the_run_continued(tmp_path, last, skips, check, alarms):
    got = training(tmp_path, LONG_ROW.format(last=last, check=check), "--on-alarm", "stop", "--max-skips", skips)
    assert (got.code, got.out, got.watched["handled_by_script"]) == (0, "ended True\n", last - 3), got.text()
    assert len(got.alarms) == alarms, got.text()
    for alarm in got.alarms:
        assert (
            f"dropped {last - 3} steps in a row by itself: the loss was not finite; then it went on" in alarm["text"]
        ), alarm["text"]
        assert (alarm["step"], alarm["births"][0]["op"], alarm["rerun"]) == (3, "aten::mul", "persistent"), alarm


TOGETHER = """
head = nn.Linear(1, 1)
other = torch.optim.AdamW(head.parameters(), lr=0.01)
for i in range(25):
    ZERO
    loss = head(loss_of(batches[i % 6]).view(1, 1)).sum()
    if i >= 5: loss = loss * NAN
    loss.backward()
    grads = [p.grad for o in (opt, other) for g in o.param_groups for p in g["params"]]
    if all(torch.isfinite(g).all() for g in grads):
        opt.step(); other.step()
"""
ZEROS = {
    "to none": "opt.zero_grad(); other.zero_grad()",
    "to zero": "opt.zero_grad(set_to_none=False); other.zero_grad(set_to_none=False)",
    "through the modules": "model.zero_grad(); head.zero_grad()",
}


@pytest.mark.parametrize("zero", ZEROS.values(), ids=ZEROS)
def test_steps_of_two_optimizers_that_are_dropped_together(tmp_path, zero):
    got = training(tmp_path, TOGETHER.replace("ZERO", zero), "--on-alarm", "raise")
    assert (got.code, got.the_alarm()["step"]) == (1, 5) and "dropped 10 steps in a row" in got.the_alarm()["text"]
    assert got.watched["handled_by_script"] == 10, got.text()


@pytest.mark.parametrize("look", ["model.weight.sum().item()", "float(model.weight.norm())"])
def test_look_at_damaged_weights_is_no_dropped_step(tmp_path, look):
    """Under warn the bad step is applied: what the script logs of the weights since is no loss that it handled."""
    text = loop(f"opt.step(); print({look}); continue", bad="i == 3", steps=6)
    got = training(tmp_path, text, "--on-alarm", "warn")
    assert got.report["watched"]["handled_by_script"] == 0, got.text()
    assert got.alarms[0]["weights"] == "damaged" and not got.report["advisories"]


def test_a_gradient_written_twice_by_backward_was_not_dropped(tmp_path):
    """As DistributedDataParallel does, which puts the average into it."""
    loop = """
def write(p): p.grad.mul_(1.0)
for p in model.parameters(): p.register_post_accumulate_grad_hook(write)
for i in range(6):
    opt.zero_grad()
    (loss_of(batches[i]) * (NAN if i == 3 else 1.0)).backward()
    loss_of(batches[i]).backward()
    opt.step()
"""
    got = training(tmp_path, loop, "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["action"]) == (3, "the step was skipped"), got.text()
    assert got.watched["handled_by_script"] == 0 and not got.advisories(), got.text()
