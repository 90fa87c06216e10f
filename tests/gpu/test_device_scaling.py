"""Gradient clipping and GradScaler on a make-believe device: which step is bad, and which one is skipped as always."""

import pytest

from device_programs import FUSED, OTHERS, TWO_CLIPS, on_device

SCALED = """
opt = OPTIMIZER
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for i, x in enumerate(batches):
    loss = loss_of(x) * (NAN if i == BAD_LOSS else 1.0)
    opt.zero_grad()
    scaler.scale(loss).backward()
    if i in (3, 6) and BAD_LOSS < 0:
        model[0].weight.grad[0, 0] = INF
    before = bits(opt)
    scaler.step(opt)
    if i in (3, 6):
        print("left out", bits(opt) == before)
    scaler.update()
print("scale", scaler.get_scale(), "flag", "found_inf" in opt.__dict__)
"""


@pytest.mark.parametrize("name", ["AdamW", "SGD momentum"])
def test_a_scalers_skips_are_normal(tmp_path, library, name):
    result = on_device(
        library, tmp_path, SCALED.replace("OPTIMIZER", FUSED[name]).replace("BAD_LOSS", "-1"), "--on-alarm", "stop"
    )
    result.assert_no_alarm()
    assert result.out.count("left out True") == 2 and "scale 256.0 flag False" in result.out, result.text()
    assert (result.watched["scaler_skips"], result.watched["steps"]) == (2, 8), result.text()


@pytest.mark.parametrize("policy", ["stop", "warn"])
@pytest.mark.parametrize("name", ["AdamW", "AdamW subclass"])
def test_scaler_skips_without_our_flag_are_normal(tmp_path, library, name, policy):
    # The first step, a class that may not obey the flag, and a policy that leaves nothing out.
    body = SCALED.replace("(3, 6)", "(0, 6)").replace(
        "OPTIMIZER", {**FUSED, "AdamW subclass": OTHERS["a subclass"]}[name]
    )
    result = on_device(library, tmp_path, body.replace("BAD_LOSS", "-1"), "--on-alarm", policy)
    result.assert_no_alarm()
    assert "scale 256.0 flag False" in result.out, result.text()
    assert (result.watched["scaler_skips"], result.watched["steps"]) == (2, 8), result.text()


def test_a_bad_unscaled_loss_alarms_under_a_scaler(tmp_path, library):
    result = on_device(
        library, tmp_path, SCALED.replace("OPTIMIZER", FUSED["AdamW"]).replace("BAD_LOSS", "3"), "--on-alarm", "skip"
    )
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "loss", "clean"), result.text()


CLIPPED = """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for i, x in enumerate(batches):
    opt.zero_grad()
    loss_of(x).backward()
    if i == BAD:
        model[2].weight.grad[0, 0] = INF
    CLIP
    before = bits(opt)
    opt.step()
    if i == BAD:
        print("left out", bits(opt) == before)
asked = counts()
print("scans", asked["scans"], "flags", asked["flags"])
"""


@pytest.mark.parametrize(
    "clip",
    [
        "clip_grad_norm_(model.parameters(), 1.0)",
        "clip_grad_norm_(model.parameters(), 1.0, norm_type=0)",
        "clip_grad_value_(model.parameters(), 0.5)",
    ],
)
def test_clipping_does_not_hide_which_gradient_was_bad(tmp_path, library, clip):
    body = CLIPPED.replace("CLIP", "torch.nn.utils." + clip)
    result = on_device(library, tmp_path, body.replace("BAD", "4"))
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["sink"]["name"]) == (4, "2.weight") and "left out True" in result.out, result.text()
    assert len(alarm["gradients"]["bad"]) == 1, "the others became NaN by clipping"
    healthy = on_device(library, tmp_path, body.replace("BAD", "-1"))
    healthy.assert_silent()
    assert "scans 10 flags 10" in healthy.out, healthy.text()


@pytest.mark.parametrize(
    "clip",
    [
        "clip_grad_norm_(model.parameters(), NAN)",
        "clip_grad_norm_(model.parameters(), torch.tensor(NAN))",
        "clip_grad_norm_(model.parameters(), -INF)",
        "clip_grad_value_(model.parameters(), NAN)",
        "clip_grad_value_(model.parameters(), clip_value=NAN)",
    ],
)
def test_finite_gradients_that_clipping_itself_ruins_alarm(tmp_path, library, clip):
    body = CLIPPED.replace("model[2].weight.grad[0, 0] = INF", "pass").replace(
        "    CLIP", "    if i == BAD: torch.nn.utils." + clip
    )
    result = on_device(library, tmp_path, body.replace("BAD", "4"))
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"]) == (4, "gradient") and "left out True" in result.out, result.text()


def test_bad_loss_counts_once_despite_repeated_clipping(tmp_path, library):
    result = on_device(library, tmp_path, TWO_CLIPS)
    alarm = result.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["action"]) == (4, "loss", "the step was skipped"), result.text()
    assert [line for line in result.out.splitlines() if line.startswith("left out")] == ["left out 4"], result.text()
    once = TWO_CLIPS.replace("    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)\n", "").replace(
        "model[2]", "model"
    )
    result = on_device(library, tmp_path, once)
    assert result.the_alarm()["step"] == 4 and result.out.splitlines().count("left out 4") == 1, result.text()
    assert result.out.count("left out") == 1, result.text()
