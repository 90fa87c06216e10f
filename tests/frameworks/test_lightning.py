"""Lightning's Trainer under `finitude run`: nothing changes, and training_step is what runs a second time."""

import pytest
from framework_runs import PROGRAMS, assert_explained, assert_healthy, assert_weights_as_before, needs, run

pytestmark = needs("lightning")
PROGRAM = "lightning_fit.py"
BIRTH = "return self.net(x / x.norm(dim=1, keepdim=True))"
BAD = 7  # a batch of the first epoch, of 12

# name: (micro-batches to a step, way of the second run)
CONFIGURATIONS = {
    "automatic": (1, "closure"), "accumulating": (3, "closure"), "bf16": (1, "closure"), "half": (1, "closure"),
    "clip_norm": (1, "closure"), "clip_value": (2, "closure"), "manual": (2, "closure"), "lbfgs": (1, "closure"),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    names = ",".join([*CONFIGURATIONS, "adversarial"])
    folder = tmp_path_factory.mktemp("healthy")
    return run(folder / "watched", PROGRAM, names, options=[]), run(folder / "plain", PROGRAM, names)


def test_healthy_trainings_are_left_alone(healthy):
    assert_healthy(*healthy)


def test_logs_of_healthy_trainings_are_the_same(healthy):
    watched, plain = healthy
    for file in plain.folder.glob("logs/*/metrics.csv"):
        assert (watched.folder / file.relative_to(plain.folder)).read_bytes() == file.read_bytes(), file
    assert (watched.folder / "batches.txt").read_bytes() == (plain.folder / "batches.txt").read_bytes()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_bad_step_is_stopped_and_explained(tmp_path, name):
    size, way = CONFIGURATIONS[name]
    got = run(tmp_path, PROGRAM, name, str(BAD), options=[])
    assert got.code == 1 and "NonFiniteError" in got.err, got.told()
    alarm = assert_explained(got, PROGRAM, BAD // size, BIRTH, "division-by-zero", way)
    assert alarm["micro_batch"] == BAD % size
    assert_weights_as_before(got)
    # Callbacks and loggers saw each batch before the bad step once, and of that step what had run before it.
    seen = (tmp_path / "batches.txt").read_text().splitlines()
    assert [int(line.split()[0]) for line in seen] == list(range(BAD if size == 1 else BAD // size * size + size - 1))


@pytest.mark.parametrize("name", ["automatic", "accumulating", "manual"])
def test_a_skipped_step_is_seen_once(tmp_path, name):
    """The run goes on; callbacks, loggers and counters show every batch once, as a run that cannot fail does."""
    skipped = run(tmp_path / "skipped", PROGRAM, name, str(BAD), options=["--on-alarm", "skip"])
    assert skipped.code == 0 and len(skipped.alarms) >= 1, skipped.told()
    plain = run(tmp_path / "plain", PROGRAM, name)
    assert (skipped.folder / "batches.txt").read_text() == (plain.folder / "batches.txt").read_text()
    rows = [f.read_text().count("\n") for f in sorted(skipped.folder.glob("logs/*/metrics.csv"))]
    assert rows == [f.read_text().count("\n") for f in sorted(plain.folder.glob("logs/*/metrics.csv"))]
    assert len(list((skipped.folder / "logs").iterdir())) == 1


@pytest.mark.parametrize("name, source, way", [
    ("adversarial", "unit = x / first", "closure"),
    # What the judge's step did to the weights is not undone for this: the whole program runs again.
    ("adversarial_maker", "loss = -self.judge(self.maker(torch.randn_like(x) + x / second)).mean()", "restart"),
])
def test_two_optimizers_in_one_training_step(tmp_path, name, source, way):
    got = run(tmp_path, PROGRAM, name, str(BAD), options=[])
    alarm = assert_explained(got, PROGRAM, BAD, source, "division-by-zero", way)
    assert ("an optimizer has stepped in it before" in alarm["rerun_text"]) == (way == "restart")


ODD = "lightning_odd.py"
# case: (line of the birth, cause, way)
CASES = {
    "plain": (BIRTH, "division-by-zero", "closure"),
    "workers": (BIRTH, "division-by-zero", "closure"),
    "profiler": (BIRTH, "division-by-zero", "closure"),
    "manual_closure": (BIRTH, "division-by-zero", "closure"),
    "returns_none": (BIRTH, "division-by-zero", "closure"),
    "raises": (BIRTH, "division-by-zero", "closure"),
    "nan_in_data": ("return self.net(x)\n", "bad-data", "closure"),
    "in_backward": ("return self.net(x) + (x * self.net[0].weight[:1])", "domain-edge", "closure"),
    "changed_in_place": (BIRTH, "division-by-zero", "restart"),
}


def scalars(folder, tag):
    """The steps at which a TensorBoard log has that tag, in the order of writing."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = (e for f in sorted(folder.glob("tb/*/events*")) for e in EventFileLoader(str(f)).Load())
    return [e.step for e in events for v in e.summary.value if v.tag == tag]


@pytest.mark.parametrize("case", CASES)
def test_harder_cases(tmp_path, case):
    source, cause, way = CASES[case]
    got = run(tmp_path, ODD, case, str(BAD), options=[])
    alarm = assert_explained(got, ODD, BAD, source, cause, way)
    assert got.code == 1 and alarm["weights"] == "clean"
    if way == "closure":  # loggers of the script heard of the bad batch once
        pytest.importorskip("tensorboard")
        assert (tmp_path / "mine.log").read_text().splitlines() == [f"batch {i}" for i in range(BAD + 1)]
        assert scalars(tmp_path, "mine") == list(range(BAD + 1))


def test_loggers_of_a_run_that_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    got = run(tmp_path, ODD, "plain", str(BAD), options=["--on-alarm", "skip"])
    assert got.code == 0 and "seen 12" in got.out, got.told()
    assert scalars(tmp_path, "mine") == list(range(12))
    assert got.the_alarm()["rerun_by"] == "closure"


def test_the_other_package_of_lightning(tmp_path):
    """pytorch_lightning is a package of its own with the same classes."""
    text = (PROGRAMS / PROGRAM).read_text().replace("import lightning.pytorch as pl", "import pytorch_lightning as pl")
    text = text.replace("from lightning.pytorch", "from pytorch_lightning")
    got = run(tmp_path, PROGRAM, "accumulating", str(BAD), options=[], text=text)
    assert_explained(got, PROGRAM, BAD // 3, BIRTH, "division-by-zero")
