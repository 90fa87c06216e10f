"""Lightning's Trainer where it is hard to run a step again. What every configuration does is in test_table.py."""

import json
import pathlib
import re

import pytest
from framework_runs import PROGRAMS, assert_explained, line_of, needs, run

pytestmark = needs("lightning")
PROGRAM = "lightning_fit.py"
BIRTH = "return self.net(x / x.norm(dim=1, keepdim=True))"
BAD = 7  # a batch of the first epoch, of 12


@pytest.mark.parametrize(
    "name, source, way",
    [
        ("adversarial", "unit = x / first", "closure"),
        # What the judge's step did to the weights is not undone for this: the whole program runs again.
        ("adversarial_maker", "loss = -self.judge(self.maker(torch.randn_like(x) + x / second)).mean()", "restart"),
    ],
)
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
        assert (tmp_path / "mine.log").read_text().splitlines() == [f"batch {i}" for i in range(BAD + 1)]
        assert scalars(tmp_path, "mine") == list(range(BAD + 1))


def test_loggers_of_continuing_run_record_each_step_once(tmp_path):
    got = run(tmp_path, ODD, "plain", str(BAD), options=["--on-alarm", "skip"])
    assert got.code == 0 and "seen 12" in got.out, got.text()
    assert scalars(tmp_path, "mine") == list(range(12))
    assert got.the_alarm()["rerun_by"] == "closure"


def test_the_other_package_of_lightning(tmp_path):
    """pytorch_lightning is a package of its own with the same classes."""
    text = (PROGRAMS / PROGRAM).read_text().replace("import lightning.pytorch as pl", "import pytorch_lightning as pl")
    text = text.replace("from lightning.pytorch", "from pytorch_lightning")
    got = run(tmp_path, PROGRAM, "accumulating", str(BAD), options=[], text=text)
    assert_explained(got, PROGRAM, BAD // 3, BIRTH, "division-by-zero")


SAVING = """
import torch, lightning.pytorch as pl
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)
    def training_step(self, batch, batch_idx):
        return self.net(batch).pow(2).mean()
    def on_train_epoch_end(self):
        if self.current_epoch:
            self.net.weight.data.fill_(float("nan"))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)

every = pl.callbacks.ModelCheckpoint("saved", "{epoch}", save_top_k=-1)
model, rows = Model(), DataLoader(torch.randn(8, 6), batch_size=4)
pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, callbacks=[every], enable_progress_bar=False).fit(model, rows)
Fabric(accelerator="cpu").save("fabric.ckpt", {"model": model})
"""


def test_its_checkpoints_are_guarded(tmp_path):
    got = run(tmp_path, "saving.py", options=["--on-alarm", "warn"], text=SAVING)
    lines = [line for file in tmp_path.glob("finitude-runs/*/events.jsonl") for line in file.read_text().splitlines()]
    saved = [e for e in map(json.loads, lines) if e["kind"] == "checkpoint"]
    assert [(pathlib.Path(e["path"]).name, e["step"], e["verdict"]) for e in saved] == [
        ("epoch=0.ckpt", 2, "good"),
        ("epoch=1.ckpt", 4, "bad"),
        ("fabric.ckpt", 4, "bad"),
    ], got.text()


RANKS = "lightning_ranks.py"


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_ranks_call_their_units_again_together(tmp_path, policy):
    got = run(tmp_path, RANKS, "26", options=["--on-alarm", policy])
    bad = [tuple(map(int, words)) for words in re.findall(r"bad rank (\d) step (\d+) row (\d)", got.out)]
    assert got.code == (policy == "stop") and len(bad) == (2 if policy == "skip" else 1), got.text()
    assert len(got.alarms) == 2 * len(bad)
    for rank, step, row in bad:
        own, other = sorted((a for a in got.alarms if a["step"] == step), key=lambda a: a["rank"] != rank)
        for alarm in (own, other):
            assert (alarm["rerun_by"], alarm["rerun_verified"], alarm["weights"]) == ("closure", True, "clean"), alarm[
                "rerun_text"
            ]
            assert "on all ranks together" in alarm["rerun_text"]
        assert [b["line"] for b in own["births"]] == [
            line_of(RANKS, "self.net(x / x.norm(dim=1, keepdim=True))")
        ] and own["births"][0]["rows"] == [row]
        assert other["cause"]["class"] == "other-rank" and f"came from rank {rank}" in other["cause"]["text"]
    weights = re.findall(r"rank \d weights (.*)", got.out)
    assert len(set(weights)) == (1 if policy == "skip" else 0), got.out


def test_ranks_that_are_well_train_as_without_us(tmp_path):
    watched, plain = run(tmp_path / "watched", RANKS, "-1", options=[]), run(tmp_path / "plain", RANKS, "-1")
    watched.assert_silent()
    assert sorted(watched.out.splitlines()) == sorted(plain.out.splitlines()) and "weights" in plain.out
