"""finitude.integrations: the one-line callbacks, in programs that run under plain Python."""

import subprocess
import sys

import pytest
from framework_runs import assert_explained, assert_weights_as_before, needs, run
from table import last_line

pytestmark = needs("lightning", "transformers", "accelerate")
BAD = 7
PROGRAMS = {
    "lightning_fit.py": ("clip_norm", "return self.net(x / x.norm(dim=1, keepdim=True))", "closure"),
    "trainer_fit.py": ("clipping", "first = first / first.norm(dim=1, keepdim=True)", "closure"),
    "accelerate_fit.py": ("plain", "return self.net(x / x.norm(dim=1, keepdim=True))", "rewind"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_bad_step_is_stopped_and_explained(tmp_path, program):
    name, source, way = PROGRAMS[program]
    got = run(tmp_path, program, name, str(BAD), "callback")
    assert got.code == 1 and "NonFiniteError" in got.err, got.text()
    assert_explained(got, program, BAD, source, "division-by-zero", way)
    assert_weights_as_before(got, name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_callback_skips_a_step_as_finitude_run_does(tmp_path, program):
    """The callback's own option; the run ends with the weights of one that never saw the bad batch."""
    name, source, way = PROGRAMS[program]
    skipped = run(tmp_path / "skipped", program, name, str(BAD), "callback-skip")
    assert skipped.code == 0, skipped.text()
    alarm = skipped.alarms[0]
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (BAD, way, True), alarm["rerun_text"]
    without = run(tmp_path / "without", program, name, str(BAD), "without")
    assert last_line(name, skipped) == last_line(name, without)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_healthy_training_is_left_alone(tmp_path, program):
    name = PROGRAMS[program][0]
    watched = run(tmp_path / "watched", program, name, "-", "callback")
    watched.assert_silent()
    plain = run(tmp_path / "plain", program, name)
    assert (watched.folder / name / "digests.txt").read_bytes() == (plain.folder / name / "digests.txt").read_bytes()


@pytest.mark.parametrize("program", PROGRAMS)
def test_callback_is_inactive_under_finitude_run(tmp_path, program):
    name, source, way = PROGRAMS[program]
    got = run(tmp_path, program, name, str(BAD), "callback", options=[])
    assert_explained(got, program, BAD, source, "division-by-zero", way)
    assert got.err.count("born in") == 1


def test_no_framework_is_imported_before_it_is_used():
    text = """if True:
        import sys
        import finitude.integrations.lightning, finitude.integrations.transformers, finitude.integrations.accelerate
        assert not {"lightning", "pytorch_lightning", "transformers", "accelerate", "torch"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", text], check=True)
