"""Bad gradients that the script itself put right, or a window it never stepped: an advisory, counted, never an
alarm."""

import pytest

from helpers import training

LOOP = """
for i, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x)
    if i in (2, 4): loss = loss {fault}
    loss.backward()
    {treatment}
    opt.step()
print("ended", finite())
"""

NAN_LOSS, BAD_GRADIENT = "* NAN", "+ 0 * ENDLESS_SLOPE"

TREATMENTS = {
    "zeroed in place": "if not torch.isfinite(model.weight.grad).all(): [p.grad.zero_() for p in model.parameters()]",
    "zeroed by zero_grad": "if not torch.isfinite(model.weight.grad).all(): opt.zero_grad(set_to_none=False)",
    "dropped by zero_grad": "if not torch.isfinite(model.weight.grad).all(): opt.zero_grad()",
    "nan_to_num_": "[p.grad.nan_to_num_(0, 0, 0) for p in model.parameters()]",
    "nan_to_num of data": "[p.grad.data.nan_to_num_(0, 0, 0) for p in model.parameters()]",
    "replaced": "for p in model.parameters(): p.grad = torch.nan_to_num(p.grad, 0, 0, 0)",
    "step skipped": "if not torch.isfinite(model.weight.grad).all(): continue",
    "step skipped by the norm": "if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)): continue",
}


def assert_handled(got, times):
    assert (got.code, got.out, got.report["outcome"]) == (0, "ended True\n", "clean"), got.text()
    assert not got.alarms and got.watched["handled_by_script"] == times, got.text()
    assert len(got.advisories("handled-by-script")) == times == len(got.advisories()), got.text()
    said = f"{times} bad step" + ("s" if times > 1 else "") + " handled by the script"
    assert said in got.err.splitlines()[-1], got.err


@pytest.mark.parametrize("treatment", TREATMENTS.values(), ids=TREATMENTS)
@pytest.mark.parametrize("fault", [NAN_LOSS, BAD_GRADIENT], ids=["NaN loss", "NaN gradient"])
def test_gradients_repaired_by_the_script_are_an_advisory(tmp_path, fault, treatment):
    # Also under the policy that stops: nothing is there to stop.
    got = training(tmp_path, LOOP.format(fault=fault, treatment=treatment), "--on-alarm", "stop")
    assert_handled(got, 2)


INFINITE_ELEMENT = "+ (model.weight[0, 0] - model.weight[0, 0].detach()).sqrt()"


@pytest.mark.parametrize(
    "treatment",
    [
        "[p.grad.nan_to_num_(0, 0, 0) for p in model.parameters()]",
        "for p in model.parameters(): p.grad[~torch.isfinite(p.grad)] = 0",
        "for p in model.parameters(): p.grad = torch.where(torch.isfinite(p.grad), p.grad, 0)",
    ],
    ids=["nan_to_num_", "index", "where"],
)
def test_zeroing_one_infinite_element_is_not_clamping(tmp_path, treatment):
    got = training(tmp_path, LOOP.format(fault=INFINITE_ELEMENT, treatment=treatment), "--on-alarm", "stop")
    assert_handled(got, 2)


def test_treating_healthy_gradients_the_same_way_is_silent(tmp_path):
    body = "".join(LOOP.format(fault="", treatment=t) for t in TREATMENTS.values())
    got = training(tmp_path, body)
    got.assert_silent()
    assert got.watched["steps"] == 6 * len(TREATMENTS)


def test_the_advisory_names_the_step(tmp_path):
    got = training(tmp_path, LOOP.format(fault=NAN_LOSS, treatment=TREATMENTS["dropped by zero_grad"]))
    assert [a["step"] for a in got.advisories("handled-by-script")] == [2, 4], got.text()


def test_skipped_window_at_the_end_is_counted(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            loss = loss_of(x)
            if i == 5: loss = loss * NAN
            loss.backward()
            if i == 5: break
            opt.step()
        print("ended", finite())
        """,
    )
    assert_handled(got, 1)


def test_repairing_one_of_two_bad_gradients_still_alarms(tmp_path):
    got = training(tmp_path, LOOP.format(fault=NAN_LOSS, treatment="model.weight.grad.nan_to_num_(0, 0, 0)"))
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["weights"]) == (2, "clean"), got.text()


def test_zero_grad_without_a_step_clears_the_window(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            if i == 3:
                (loss_of(x) * NAN).backward()   # a probe whose gradients are thrown away
            opt.zero_grad()
            loss_of(x).backward()
            opt.step()
        print("ended", finite())
        """,
    )
    assert_handled(got, 1)


def test_without_the_zero_grad_the_same_window_alarms(tmp_path):
    got = training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            if i == 3:
                (loss_of(x) * NAN).backward()
            loss_of(x).backward()
            opt.step()
        """,
    )
    assert got.the_alarm()["step"] == 3
