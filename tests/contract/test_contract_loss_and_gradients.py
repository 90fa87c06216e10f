"""When `step` is reached with a non-finite loss or an owned gradient that was non-finite before clipping: an alarm.

Each script is a small training with one fault; its twin does nearly the same and must stay silent.
"""

import pytest

from helpers import training

LOOP = """
for i, x in enumerate(batches):
    loss = loss_of(x)
    opt.zero_grad()
    {fault}
    loss.backward()
    {treatment}
    opt.step()
print("ended", finite())
"""


def loop(fault="pass", treatment="pass"):
    return LOOP.format(fault=fault, treatment=treatment)


@pytest.mark.parametrize("value, word", [("NAN", "NaN"), ("INF", "Inf"), ("-INF", "Inf")])
def test_nonfinite_loss_alarms_at_its_step(tmp_path, value, word):
    got = training(tmp_path, loop(f"if i == 3: loss = loss * {value}"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"], alarm["weights"]) == (3, {"kind": "loss", "name": "loss"}, "clean")
    assert alarm["optimizer"] == "SGD" and not alarm["harmless"]
    assert f"loss is {word}" in alarm["text"]
    assert got.code == 1 and "NonFiniteError" in got.err and got.out == ""


def test_the_same_training_without_the_fault_is_silent(tmp_path):
    got = training(tmp_path, loop())
    got.assert_silent()
    assert got.out == "ended True\n"
    assert got.watched == {
        "optimizers": 1,
        "steps": 6,
        "backward_calls": 6,
        "gradients_scanned": 12,
        "scaler_skips": 0,
        "handled_by_script": 0,
        "not_watched": [],
    }


# What each treatment of the gradients does to an Inf: the first three hide it, so only a look before them finds it.
CLIPPING = {
    "nothing": "pass",
    "clip_grad_value_": "nn.utils.clip_grad_value_(model.parameters(), 1.0)",
    "clamp_": "[p.grad.clamp_(-1, 1) for p in model.parameters()]",
    "clamp_ of data": "[p.grad.data.clamp_(-1, 1) for p in model.parameters()]",
    "clip_grad_norm_": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "clip_grad_norm_ without foreach": "nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)",
    "clip_grad_norm_ of the largest": "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=INF)",
    "clip_grad_norm_ of what is not zero": "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=0)",
    "clip_grad_norm_ of the smallest": "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=-INF)",
    "clip_grad_norm_ with a text": "nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type='inf')",
    "clip_grads_with_norm_": "nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, "
    "nn.utils.get_total_norm([p.grad for p in model.parameters()]))",
}


@pytest.mark.parametrize("treatment", CLIPPING.values(), ids=CLIPPING)
def test_an_infinite_gradient_before_clipping_alarms(tmp_path, treatment):
    got = training(tmp_path, loop("if i == 2: loss = loss + ENDLESS_SLOPE", treatment))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["sink"]["name"]) == (2, "gradient", "weight"), got.text()
    assert alarm["weights"] == "clean" and not alarm["harmless"]


@pytest.mark.parametrize(
    "treatment",
    [
        CLIPPING[k]
        for k in (
            "nothing",
            "clip_grad_value_",
            "clamp_",
            "clamp_ of data",
            "clip_grad_norm_",
            "clip_grad_norm_ of the largest",
            "clip_grad_norm_ of the smallest",
        )
    ],
)
@pytest.mark.parametrize("way", [["--level", "gate"], ["--level", "trace"], ["--level", "tape"]], ids=" ".join)
def test_clamped_infinite_gradient_is_born_in_backward(tmp_path, treatment, way):
    got = training(tmp_path, loop("if i == 2: loss = loss + ENDLESS_SLOPE", treatment), "--on-alarm", "skip", *way)
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert birth["phase"] == "backward" and "ENDLESS" not in birth["source"] and "sqrt" in birth["forward"]["source"], (
        got.text()
    )
    assert alarm["cause"]["class"] == "domain-edge", alarm["cause"]
    # What the step comes to is finite with or without a change: nothing there can prove a fix.
    assert not any("whole step" in e["name"] for e in alarm["cause"]["experiments"]) or "clamp" not in treatment


@pytest.mark.parametrize(
    "treatment",
    [CLIPPING[k] for k in ("nothing", "clip_grad_value_", "clip_grad_norm_", "clip_grad_norm_ of what is not zero")],
)
def test_a_nan_gradient_before_clipping_alarms(tmp_path, treatment):
    # 0 times the endless slope: NaN, which no clamp removes.
    got = training(tmp_path, loop("if i == 2: loss = loss + 0 * ENDLESS_SLOPE", treatment))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["sink"]["name"]) == (2, "gradient", "weight"), got.text()


@pytest.mark.parametrize(
    "treatment",
    [
        "nn.utils.clip_grad_norm_(model.parameters(), NAN)",
        "nn.utils.clip_grad_norm_(model.parameters(), torch.tensor(NAN), foreach=False)",
        "nn.utils.clip_grad_norm_(model.parameters(), -INF)",
        "nn.utils.clip_grad_value_(model.parameters(), NAN)",
        "nn.utils.clip_grads_with_norm_(model.parameters(), NAN, torch.tensor(1.0))",
    ],
)
def test_finite_gradients_that_clipping_itself_ruins_alarm(tmp_path, treatment):
    got = training(tmp_path, loop(treatment=f"if i == 3: {treatment}"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (3, "gradient", "clean"), got.text()


def test_clipping_large_finite_gradients_is_silent(tmp_path):
    small_steps = "for g in opt.param_groups: g['lr'] = 1e-12\n"
    got = training(tmp_path, small_steps + "".join(loop("loss = loss * 1e6", how) for how in CLIPPING.values()))
    got.assert_silent()
    assert got.watched["steps"] == 6 * len(CLIPPING)


def test_bad_micro_batch_is_named_among_good_ones(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(0, 6, 3):
            opt.zero_grad()
            for k in range(3):
                loss = loss_of(batches[i + k])
                if i + k == 4: loss = loss * NAN
                loss.backward()
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["micro_batch"], alarm["sink"]["kind"]) == (1, 1, "loss"), got.text()


def test_gradient_writes_after_backward_start_no_micro_batch(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(0, 6, 2):
            opt.zero_grad()
            for k in range(2):
                loss_of(batches[i + k]).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.grad.div_(torch.full((), float(i != 4)))
            opt.step()
        """,
        "--on-alarm",
        "stop",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["births"][0]["op"], alarm["micro_batch"]) == (2, "aten::div_", 1), got.text()


def test_accumulation_over_good_micro_batches_is_silent(tmp_path):
    got = training(
        tmp_path,
        """
        for i in range(0, 6, 3):
            opt.zero_grad()
            for k in range(3):
                loss_of(batches[i + k]).backward()
            opt.step()
        """,
    )
    got.assert_silent()
    assert (got.watched["steps"], got.watched["backward_calls"]) == (2, 6)


def test_values_masked_by_torch_where_are_silent(tmp_path):
    # log(0) in the branch that is not taken: no NaN reaches loss or gradient.
    training(tmp_path, loop("z = (x > 0).float(); loss = loss + torch.where(z > 0, z.log(), z).mean()")).assert_silent()


IGNORED = """
targets = torch.randint(0, 3, (6, 8))
targets[{ignored}] = -100
for x, y in zip(batches, targets):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
print("ended", finite())
"""


@pytest.mark.parametrize("policy", ["stop", "raise"])
def test_all_ignored_labels_alarm_harmlessly_and_training_continues(tmp_path, policy):
    # With a mean over nothing the loss is NaN, yet every gradient is zero.
    got = training(tmp_path, IGNORED.format(ignored=2), "--on-alarm", policy, "--level", "trace")
    alarm = got.the_alarm()
    assert alarm["harmless"] and (alarm["step"], alarm["sink"]["kind"], alarm["weights"]) == (2, "loss", "clean")
    assert "gradients are finite, weights were not in danger" in alarm["text"]
    assert (got.code, got.out, got.watched["steps"]) == (0, "ended True\n", 6), got.text()


def test_a_batch_with_some_labels_left_is_silent(tmp_path):
    training(tmp_path, IGNORED.format(ignored=":, 1:")).assert_silent()


def test_harmless_alarms_stop_the_run_after_max_skips(tmp_path):
    got = training(tmp_path, IGNORED.format(ignored="1:"), "--on-alarm", "raise", "--max-skips", "2")
    assert got.code == 1 and got.out == "", got.text()
    assert [a["step"] for a in got.alarms] == [1, 2, 3] and all(a["harmless"] for a in got.alarms)


def test_nonconsecutive_harmless_alarms_do_not_accumulate(tmp_path):
    got = training(tmp_path, IGNORED.format(ignored="[0, 2, 4, 5]"), "--on-alarm", "raise", "--max-skips", "2")
    assert (got.code, got.out) == (0, "ended True\n"), got.text()
    assert [a["step"] for a in got.alarms] == [0, 2, 4, 5]


def test_gradient_at_reused_address_counts_as_new(tmp_path):
    """The hook frees memory of a tensor's size right before the gradient is made, which lies there as the last one
    did."""
    got = training(
        tmp_path,
        """
        w, held = nn.Parameter(torch.randn(4)), []
        opt = torch.optim.SGD([w], lr=0.01)
        w.register_hook(lambda g: held.clear())
        again = False
        while not again:
            loss = w.sum()
            last = w.grad._cdata if w.grad is not None else 0
            opt.zero_grad()
            held += [torch.empty(0) for _ in range(3)]
            loss.backward()
            again = w.grad._cdata == last
            if again: (w * NAN).sum().backward()
            opt.step()
        """,
    )
    assert got.the_alarm()["micro_batch"] == 1, got.text()
