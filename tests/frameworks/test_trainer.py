"""The Hugging Face Trainer under `finitude run`: nothing changes, and training_step is what runs a second time."""

import pytest
from framework_runs import assert_explained, assert_healthy, assert_weights_as_before, needs, run

pytestmark = needs("transformers", "accelerate")
PROGRAM = "trainer_fit.py"
BAD = 7
IN_MODEL = "first = first / first.norm(dim=1, keepdim=True)"
IN_LOSS = "loss = (nn.functional.cross_entropy(logits, labels, reduction=\"none\") * weight).sum() / weight.sum()"

# name: (micro-batches to a step, line of the birth)
CONFIGURATIONS = {
    "plain": (1, IN_MODEL), "clipping": (1, IN_MODEL), "accumulating": (3, IN_MODEL), "bf16": (1, IN_MODEL),
    "overridden": (1, IN_MODEL), "own_loss": (2, IN_LOSS),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    names = ",".join(CONFIGURATIONS)
    return run(folder / "watched", PROGRAM, names, options=[]), run(folder / "plain", PROGRAM, names)


def test_healthy_trainings_are_left_alone(healthy):
    assert_healthy(*healthy)
    watched, plain = healthy
    assert (watched.folder / "steps.txt").read_bytes() == (plain.folder / "steps.txt").read_bytes()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_bad_step_is_stopped_and_explained(tmp_path, name):
    size, source = CONFIGURATIONS[name]
    got = run(tmp_path, PROGRAM, name, str(BAD), options=[])
    assert got.code == 1 and "NonFiniteError" in got.err, got.told()
    alarm = assert_explained(got, PROGRAM, BAD // size, source, "division-by-zero")
    assert alarm["micro_batch"] == BAD % size
    assert_weights_as_before(got)
    seen = (tmp_path / "steps.txt").read_text().split("\n")[:-1]
    assert seen == [f"{n} {n}" for n in range(1, BAD // size + 1)]


@pytest.mark.parametrize("name", ["clipping", "own_loss"])
def test_a_skipped_step_is_seen_once(tmp_path, name):
    skipped = run(tmp_path / "skipped", PROGRAM, name, str(BAD), options=["--on-alarm", "skip"])
    assert skipped.code == 0 and len(skipped.alarms) == 2, skipped.told()  # one in each epoch
    plain = run(tmp_path / "plain", PROGRAM, name)
    assert (skipped.folder / "steps.txt").read_bytes() == (plain.folder / "steps.txt").read_bytes()
    logged = [line.split("weights")[0] for line in (skipped.out, plain.out) for line in line.splitlines() if "weights" in line]
    assert logged[0] == logged[1]
