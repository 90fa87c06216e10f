"""Where we fail while a bad step is being explained, we switch off, loudly and once; the step is bad all the same."""

import pytest

import helpers

# What fails stands for any place of ours that meets something it does not expect.
BROKEN = helpers.TRAINING + """
import finitude.second_run.{module} as module
def broken(*words, **more):
    raise ZeroDivisionError("ours")
module.{name} = broken
for k, x in enumerate(batches):
    before = [p.clone() for p in model.parameters()]
    opt.zero_grad()
    loss = loss_of(x) * (NAN if k == 3 else 1)
    loss.backward()
    opt.step()
    same = all(bool((a == b).all()) for a, b in zip(before, model.parameters()))
    print(k, finite(), "left out" if same else "applied")
"""
PLACES = [("rewind", "begin"), ("rewind", "end")]
AFTER_IT_WAS_TOLD = BROKEN.replace("import finitude.second_run.{module} as module", "from finitude import _native as module")


def _run(tmp_path, place, *options):
    got = helpers.run(tmp_path, BROKEN.format(module=place[0], name=place[1]), *options)
    assert got.err.count("switched off after an internal failure in on_window") == 1, got.told()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun"], alarm["births"]) == (3, "not-run", []), got.told()
    assert "failure of our own" in alarm["rerun_text"]
    return got, alarm


@pytest.mark.fast
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_stop_stops(tmp_path, place):
    got, alarm = _run(tmp_path, place)
    assert got.code == 1 and "NonFiniteError: step 3: loss is NaN" in got.err, got.told()
    assert got.out.splitlines()[-1] == "2 True applied" and alarm["weights"] == "clean", got.told()


@pytest.mark.fast
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_skip_leaves_that_step_out(tmp_path, place):
    got, alarm = _run(tmp_path, place, "--on-alarm", "skip")
    assert got.code == 0 and alarm["weights"] == "clean", got.told()
    assert got.out.splitlines()[3:] == ["3 True left out", "4 True applied", "5 True applied"], got.told()


@pytest.mark.fast
def test_warn_applies_it(tmp_path):
    got, alarm = _run(tmp_path, PLACES[0], "--on-alarm", "warn")
    assert got.code == 0 and alarm["weights"] == "damaged", got.told()
    assert got.out.splitlines()[3:] == ["3 False applied", "4 False applied", "5 False applied"], got.told()


@pytest.mark.fast
@pytest.mark.parametrize("policy, last", [("stop", "2 True applied"), ("skip", "5 True applied")])
def test_a_failure_after_the_alarm_was_told_lets_nothing_through(tmp_path, policy, last):
    got = helpers.run(tmp_path, AFTER_IT_WAS_TOLD.format(name="put_back"), "--on-alarm", policy)
    alarm = got.the_alarm()
    assert "switched off after an internal failure in on_window" in got.err and alarm["rerun"] == "persistent", got.told()
    assert got.out.splitlines()[-1] == last and got.code == (policy == "stop"), got.told()


DROPPED = (helpers.TRAINING + """
import finitude.capsules.capsule as module
def broken(*words, **more):
    raise ZeroDivisionError("ours")
module.describe = broken
for k, x in enumerate(batches):
    opt.zero_grad()
    (loss_of(x) + (ENDLESS_SLOPE if k == 3 else 0)).backward()
    if not torch.isfinite(model.weight.grad).all(): continue
    opt.step()
print("ended", finite(), model.weight.sum().item())
""").replace("ENDLESS_SLOPE", helpers.ENDLESS_SLOPE)


@pytest.mark.fast
def test_in_the_second_run_of_a_step_that_the_script_left_out_itself_ends_nothing(tmp_path):
    got = helpers.run(tmp_path, DROPPED)
    assert got.err.count("switched off after an internal failure in on_left_bad") == 1, got.told()
    assert got.code == 0 and got.alarms == [] and "NonFiniteError" not in got.err, got.told()
    assert "did not come back" in got.advisories("handled-by-script")[0]["text"], got.told()
    helpers.write_script(tmp_path, DROPPED, "plain.py")
    assert helpers.plain(tmp_path, "plain.py").out == got.out
