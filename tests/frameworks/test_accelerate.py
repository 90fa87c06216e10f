"""A loop on Accelerate, whose loader runs one batch ahead, under `finitude run`."""

import pytest
from framework_runs import assert_explained, assert_healthy, assert_weights_as_before, needs, run

pytestmark = needs("accelerate")
PROGRAM = "accelerate_fit.py"
BAD = 7
BIRTH = "return self.net(x / x.norm(dim=1, keepdim=True))"
CONFIGURATIONS = {"plain": 1, "accumulating": 3, "bf16": 1}


def test_healthy_trainings_are_left_alone(tmp_path):
    names = ",".join(CONFIGURATIONS)
    assert_healthy(run(tmp_path / "watched", PROGRAM, names, options=[]), run(tmp_path / "plain", PROGRAM, names))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_bad_step_is_stopped_and_explained(tmp_path, name):
    size = CONFIGURATIONS[name]
    got = run(tmp_path, PROGRAM, name, str(BAD), options=[])
    assert got.code == 1, got.told()
    assert_explained(got, PROGRAM, BAD // size, BIRTH, "division-by-zero", "rewind")
    assert_weights_as_before(got)
    printed = [line for line in got.out.splitlines() if "weights" not in line]
    assert [int(line.split()[1]) for line in printed] == list(range(BAD if size == 1 else BAD // size * size + size - 1))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_skipped_step_is_seen_once(tmp_path, name):
    skipped = run(tmp_path, PROGRAM, name, str(BAD), options=["--on-alarm", "skip"])
    assert skipped.code == 0 and len(skipped.alarms) == 2, skipped.told()
    assert [int(line.split()[1]) for line in skipped.out.splitlines() if "weights" not in line] == list(range(24))
