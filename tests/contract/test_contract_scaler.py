"""GradScaler: its calibration skips are normal work; a loss that is not finite before scaling is not."""

import pytest

from helpers import run, training

LOOP = """
import warnings
scaler = torch.amp.GradScaler("cpu", init_scale={scale}, growth_interval={interval})
applied = 0
for i in range({steps}):
    opt.zero_grad()
    x = batches[i % 6]
    loss = loss_of(x)
    {fault}
    scaler.scale(loss).backward()
    {unscale}
    scaler.step(opt)
    scaler.update()
print("ended", finite(), scaler.get_scale())
"""


def loop(scale="2.0**16", interval=2000, steps=6, fault="pass", unscale="pass"):
    return LOOP.format(scale=scale, interval=interval, steps=steps, fault=fault, unscale=unscale)


CLIP = "scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
# Finite before scaling; times 1e38 the scaled loss and its gradients overflow until the scale has come down.
TOO_LARGE = "1e38"


def test_calibration_skips_are_silent_and_counted(tmp_path):
    got = training(tmp_path, loop(scale=TOO_LARGE, steps=12, fault="loss = loss * 100"))
    got.assert_silent()
    skips = got.watched["scaler_skips"]
    assert skips > 0 and got.watched["steps"] + skips == 12, got.text()
    assert f"{skips} skipped by the GradScaler" in got.err


def test_calibration_skips_with_unscaling_and_clipping_are_silent(tmp_path):
    got = training(tmp_path, loop(scale=TOO_LARGE, steps=12, fault="loss = loss * 100", unscale=CLIP))
    got.assert_silent()
    assert got.watched["scaler_skips"] > 0 and got.watched["steps"] + got.watched["scaler_skips"] == 12


def test_a_scaler_that_never_skips_is_silent(tmp_path):
    got = training(tmp_path, loop())
    got.assert_silent()
    assert (got.watched["steps"], got.watched["scaler_skips"]) == (6, 0)


def test_disabled_scaler_changes_nothing(tmp_path):
    training(tmp_path, loop().replace('"cpu", ', '"cpu", enabled=False, ')).assert_silent()
    got = training(tmp_path, loop(fault="if i == 2: loss = loss * NAN").replace('"cpu", ', '"cpu", enabled=False, '))
    assert got.the_alarm()["step"] == 2


def test_nonfinite_unscaled_loss_alarms_at_once(tmp_path):
    alarm = training(tmp_path, loop(fault="if i == 3: loss = loss * NAN")).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean")


def test_nonfinite_unscaled_loss_alarms_at_once_after_unscaling(tmp_path):
    alarm = training(tmp_path, loop(fault="if i == 3: loss = loss * INF", unscale=CLIP)).the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean")


def test_single_scaler_skip_with_finite_loss_is_silent(tmp_path):
    got = training(tmp_path, loop(fault="if i == 3: loss = loss + 0 * ENDLESS_SLOPE"))
    got.assert_silent()
    assert (got.watched["steps"], got.watched["scaler_skips"]) == (5, 1)


def test_twenty_skips_in_a_row_are_silent(tmp_path):
    got = training(tmp_path, loop(scale="2.0**60", steps=26, fault="if i < 20: loss = loss + 0 * ENDLESS_SLOPE"))
    got.assert_silent()
    assert (got.watched["steps"], got.watched["scaler_skips"]) == (6, 20)


def test_more_than_twenty_skips_in_a_row_alarm(tmp_path):
    got = training(tmp_path, loop(scale="2.0**60", steps=26, fault="loss = loss + 0 * ENDLESS_SLOPE"))
    alarm = got.the_alarm()
    assert (alarm["cause"]["class"], alarm["weights"], got.code) == ("loss-scale-misuse", "clean", 1), got.text()
    assert got.watched["steps"] == 0


def test_nonconsecutive_scaler_skips_do_not_accumulate(tmp_path):
    got = training(tmp_path, loop(scale="2.0**60", steps=40, fault="if i % 10: loss = loss + 0 * ENDLESS_SLOPE"))
    got.assert_silent()
    assert (got.watched["steps"], got.watched["scaler_skips"]) == (4, 36)


def test_a_scale_that_falls_below_one_alarms(tmp_path):
    got = training(tmp_path, loop(scale="4.0", steps=12, fault="loss = loss + 0 * ENDLESS_SLOPE"))
    assert got.the_alarm()["cause"]["class"] == "loss-scale-misuse", got.text()


# No scale is small enough for this derivative, which float16 holds up to 65504.
def test_scaler_that_skips_every_step_is_stopped(tmp_path):
    # finite; its derivative is not, at any scale
    fault = "if i > 4: loss = loss + (model.weight - model.weight.detach()).abs().sqrt().sum()"
    got = training(tmp_path, loop(scale="4.0", steps=40, fault=fault), "--on-alarm", "skip", "--max-skips", "3")
    assert got.code == 1 and [a["step"] for a in got.alarms] == [5] * 4, got.text()
    assert (
        "GradScaler skipped 7 steps in a row" in got.alarms[-1]["text"]
        and "--max-skips lets 3 pass" in got.alarms[-1]["text"]
    ), got.text()


NO_SCALE_HELPS = "loss = loss + 1e6 * ((model.weight - model.weight.detach()).half() * 3e4).float().sum() * 1e3  # here"


@pytest.mark.parametrize("level", ["gate", "trace"])
@pytest.mark.parametrize("good", [0, 3])
def test_gradient_beyond_every_scale_is_found_by_rerun(tmp_path, level, good):
    """Also where good steps came before, and skips that were normal."""
    got = training(tmp_path, loop(scale="4.0", steps=12, fault=f"if i >= {good}: {NO_SCALE_HELPS}"), "--level", level)
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (alarm["step"], birth["phase"], birth["op"]) == (good, "backward", "aten::copy_"), got.text()
    assert birth["source"].endswith("# here") and alarm["rerun_by"] == ("trace" if level == "trace" else "restart"), (
        got.text()
    )
    assert alarm["cause"]["class"] == "loss-scale-misuse" and "4 skips in a row" in alarm["cause"]["text"], got.text()
    if level == "gate":
        assert alarm["rerun"] == "persistent" and alarm["rerun_verified"] and alarm["capsule"], got.text()


def test_vetoed_step_leaves_scaler_scale_and_stages_unchanged(tmp_path):
    got = training(
        tmp_path, loop(fault="if i == 3: loss = loss * NAN", unscale=CLIP), "--on-alarm", "skip", "--level", "trace"
    )
    # As if the loop body had said `continue`: the scaler neither backs off nor counts towards growth.
    assert (got.code, got.out) == (0, "ended True 65536.0\n"), got.text()
    assert got.the_alarm()["step"] == 3


def test_scale_without_memory_is_not_read(tmp_path):
    text = loop(steps=3, unscale="scaler.unscale_(opt); held = scaler._scale; scaler._scale = mode.from_tensor(held)")
    text = text.replace("    scaler.update()", "    scaler._scale = held\n    scaler.update()")
    training(
        tmp_path, "from torch._subclasses.fake_tensor import FakeTensorMode\nmode = FakeTensorMode()\n" + text
    ).assert_silent()


def test_a_scaler_that_is_never_updated_is_named(tmp_path):
    """Its own check for that is out of the way, as a wrapper of it may have done."""
    body = loop(scale=TOO_LARGE, steps=30, fault="loss = loss * 100")
    got = training(tmp_path, body.replace("scaler.update()", "scaler._per_optimizer_states.clear()"))
    assert "its scale is still 1e+38: a skip lowers it only where scaler.update() is called" in got.the_alarm()["text"]


def test_a_loaded_scale_that_is_infinite_is_no_missing_update(tmp_path):
    fault = "if i == 3: scaler.load_state_dict({**scaler.state_dict(), 'scale': INF})"
    text = training(tmp_path, loop(steps=30, fault=fault)).the_alarm()["text"]
    assert "its scale is inf, which no update makes finite" in text and "scaler.update()" not in text, text


def test_a_complaint_of_the_scaler_is_quoted(tmp_path):
    body = loop(scale=TOO_LARGE, fault="loss = loss * 100").replace("scaler.update()", "pass")
    got = training(tmp_path, body)
    assert "raised RuntimeError: step() has already been called since the last update()" in got.the_alarm()["text"]


@pytest.mark.parametrize("scale", ["1e22", "2.0**16"])
def test_clipping_of_scaled_gradients_names_the_scale(tmp_path, scale):
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    got = training(tmp_path, loop(scale=scale, unscale=clip))
    said = [a["text"] for a in got.advisories("clipping")]
    assert len(said) == (scale == "1e22"), got.text()
    assert all("times the loss scale of 1e+22: unless scaler.unscale_(optimizer) was called before" in s for s in said)


def test_loss_that_is_scaled_twice_is_the_cause(tmp_path):
    got = training(
        tmp_path,
        loop(scale="2.0**65", steps=20, fault="loss = scaler.scale(loss)"),
        "--on-alarm",
        "stop",
    )
    cause = got.the_alarm()["cause"]
    assert cause["class"] == "loss-scale-misuse" and "multiplied by the loss scale twice" in cause["text"], cause


def test_constant_loss_scale_beyond_float32_is_the_cause(tmp_path):
    body = """
    for x in batches:
        opt.zero_grad()
        ((loss_of(x) + 9) * 1e38).backward()
        for p in model.parameters(): p.grad /= 1e38
        opt.step()
    """
    cause = training(tmp_path, body, "--on-alarm", "stop").alarms[0]["cause"]
    assert cause["class"] == "loss-scale-misuse" and "1e+38" in cause["text"], cause


def test_growth_of_the_scale_is_no_growth_of_gradients(tmp_path):
    body = loop(steps=24, interval=1).replace("init_scale", "growth_factor=8.0, init_scale")
    got = training(tmp_path, body)
    assert not [w for w in got.report["warnings"] if w["what"] in ("growth", "exploding")], got.text()


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_gradients_that_nobody_unscaled_are_the_cause_in_proportion(tmp_path, optimizer):
    """optimizer.step() in place of scaler.step(optimizer)."""
    body = f"""
    opt = torch.optim.{optimizer}(model.parameters(), lr={"0.05" if optimizer == "SGD" else "1e20"})
    scaler = torch.amp.GradScaler("cpu")
    for i in range(20):
        opt.zero_grad()
        scaler.scale(loss_of(batches[i % 6])).backward()
        opt.step()
    """
    cause = training(tmp_path, body, "--on-alarm", "stop").alarms[0]["cause"]
    said = f"{optimizer}.step() takes gradients that are still multiplied by the loss scale 65536 at train.py:"
    assert said in cause["text"], cause
    assert cause["class"] == ("loss-scale-misuse" if optimizer == "SGD" else "learning-rate"), cause


def test_large_rate_beside_a_scaler_that_is_used_is_the_rate(tmp_path):
    body = "opt = torch.optim.SGD(model.parameters(), lr=1e5)" + loop(steps=20)
    cause = training(tmp_path, body, "--on-alarm", "stop").alarms[0]["cause"]
    assert cause["class"] == "learning-rate" and "still multiplied" not in cause["text"], cause


HISTORY = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 1e-4, momentum={momentum})
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i in range(7):
    {first}
    for k in range({batches}):
        x = torch.randn(64, 8) / (0 if i == 6 else 1)
        scaler.scale(model(x).pow(2).mean() / 2).backward()
    {unscale}
    scaler.step(opt)
    print(max(p.grad.abs().max().item() for p in model.parameters()))
    scaler.update()
    {last}
"""


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("zeroed", ["first", "last"])
@pytest.mark.parametrize("unscale", ["", "scaler.unscale_(opt)"])
def test_gradients_before_a_bad_step_are_without_the_scale(tmp_path, batches, zeroed, unscale):
    places = {"first": "", "last": "", zeroed: "opt.zero_grad()"}
    text = HISTORY.format(batches=batches, momentum=0.9 if zeroed == "last" else 0, unscale=unscale, **places)
    got = run(tmp_path, text, "--on-alarm", "skip")
    true = [float(line) for line in got.out.splitlines()[:6]]
    assert got.the_alarm()["history"]["grad_absmax"] == pytest.approx(true, rel=1e-2), got.text()


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("unscale", ["", "scaler.unscale_(opt)"])
def test_an_optimizer_that_is_given_the_scale_has_scaled_gradients(tmp_path, batches, unscale):
    """A fused one unscales them itself, after they were read."""
    text = HISTORY.format(batches=batches, momentum=0, unscale=unscale, first="opt.zero_grad()", last="")
    text = text.replace("SGD(model.parameters(), 1e-4, momentum=0)", "Adam(model.parameters(), 1e-4, fused=True)")
    got = run(tmp_path, text, "--on-alarm", "skip")
    true = [float(line) for line in got.out.splitlines()[:6]]
    assert got.the_alarm()["history"]["grad_absmax"] == pytest.approx(true, rel=1e-2), got.text()


@pytest.mark.parametrize("unscale", ["", "scaler.unscale_(opt); "])
def test_a_clipped_norm_before_a_bad_step_is_without_the_scale(tmp_path, unscale):
    clip = f"{unscale}print(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item(), file=open('norms', 'a'))"
    text = HISTORY.format(batches=1, momentum=0, unscale=clip, first="opt.zero_grad()", last="")
    got = run(tmp_path, text, "--on-alarm", "skip")
    norms = [float(line) / (1 if unscale else 1024) for line in (tmp_path / "norms").read_text().splitlines()[:6]]
    assert got.the_alarm()["history"]["grad_absmax"] == pytest.approx(norms, rel=1e-2), got.text()
