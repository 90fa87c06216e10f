"""Checkpoints that a watched program writes: what is said of each, and which one is the last good one."""

import json
import pathlib
import types

import pytest
import torch

import helpers
from finitude.report import saved_values
from finitude.session import quarantine
from helpers import run

TRAINING = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
model.register_buffer("mask", torch.full((3,), float("-inf")))
opt = torch.optim.Adam(model.parameters())
def step(scale=1.0):
    opt.zero_grad()
    (model(torch.randn(8, 4)).pow(2).mean() * scale).backward()
    opt.step()
def save(name):
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, name)
"""
BAD = (
    TRAINING
    + """
for i in range(6):
    step()
    if i == 3:
        opt.state[model[0].weight]["exp_avg_sq"][1, 2] = -1.0
    save(f"{i}.pt")
"""
)


def events_of(result):
    (file,) = pathlib.Path(result.folder).glob("finitude-runs/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        (pathlib.Path(e["path"]).name, e["step"], e["verdict"], e["written"])
        for e in events
        if e["kind"] == "checkpoint"
    ]


def test_each_is_an_event_naming_the_last_good(tmp_path):
    result = run(tmp_path, TRAINING + "for i in range(3):\n    step(); save(f'{i}.pt')\nos.remove('2.pt')\n")
    assert events_of(result) == [("0.pt", 1, "good", True), ("1.pt", 2, "good", True), ("2.pt", 3, "good", True)]
    last = {"checkpoint": str(tmp_path / "1.pt"), "step": 2}
    assert result.report["checkpoints"] == {"written": 3, "bad": 0, "after_onset": 0, "last_good": last}
    assert result.report["outcome"] == "clean" and "warning" not in result.err, result.text()
    assert f"last good checkpoint {tmp_path / '1.pt'}" in " ".join(result.err.split())


def test_a_bad_one_is_said_and_written(tmp_path):
    result = run(tmp_path, BAD, "--on-alarm", "warn")
    assert [verdict for _, _, verdict, _ in events_of(result)][:4] == ["good"] * 3 + ["bad"], result.text()
    (advisory, *_) = result.advisories("bad-checkpoint")
    assert "optimizer.state.0.exp_avg_sq holds negative values" in advisory["text"]
    assert "finitude: warning: the checkpoint" in result.err and (tmp_path / "3.pt").exists()
    assert result.report["checkpoints"]["last_good"] == {"checkpoint": str(tmp_path / "2.pt"), "step": 3}


def test_refused_ones_replace_nothing(tmp_path):
    text = (
        TRAINING
        + """
step(); save("last.pt")
good = open("last.pt", "rb").read()
with torch.no_grad():
    model[2].bias.fill_(float("nan"))
try:
    save("last.pt")
except Exception as e:
    print(type(e).__name__)
print(open("last.pt", "rb").read() == good)
"""
    )
    result = run(tmp_path, text, "--checkpoints", "refuse")
    assert result.out == "NonFiniteError\nTrue\n", result.text()
    assert events_of(result) == [("last.pt", 1, "good", True), ("last.pt", 1, "bad", False)]
    assert result.report["checkpoints"]["last_good"] == {"checkpoint": str(tmp_path / "last.pt"), "step": 1}


SAVES = {
    "path": "save('last.pt')",
    "beside, then renamed": "save('last.tmp'); os.replace('last.tmp', 'last.pt')",
    "safetensors": "safetensors.torch.save_file(model.state_dict(), filename='last.pt')",
}


@pytest.mark.parametrize("saves", SAVES.values(), ids=SAVES)
def test_quarantined_ones_replace_nothing(tmp_path, saves):
    text = (
        "import safetensors.torch\n"
        + TRAINING
        + f"step(); {saves}\n"
        + """
good = open("last.pt", "rb").read()
with torch.no_grad():
    model[2].bias.fill_(float("nan"))
"""
        + f"{saves}\nprint(open('last.pt', 'rb').read() == good)\n"
    )
    result = run(tmp_path, text, "--checkpoints", "quarantine")
    assert result.out == "True\n", result.text()
    assert [event[2:] for event in events_of(result)] == [("good", True), ("bad", True)]
    assert "finitude: warning: the checkpoint" in result.err and "quarantine" in result.err
    assert (tmp_path / "quarantine" / "last.pt").exists()


def test_last_good_one_survives_rotation(tmp_path):
    text = (
        TRAINING
        + """
for i in range(6):
    step()
    if i == 2:
        with torch.no_grad():
            model[0].running = model[0].weight.fill_(float("nan"))
    save(f"{i}.pt")
    for old in range(i - 1):
        if os.path.exists(f"{old}.pt"):
            os.remove(f"{old}.pt")
"""
    )
    result = run(tmp_path, text, "--checkpoints", "quarantine", "--on-alarm", "warn")
    assert [one[2] for one in events_of(result)] == ["good"] * 2 + ["bad"] * 4, result.text()
    assert not list(tmp_path.glob("[0-9].pt"))
    last = result.report["checkpoints"]["last_good"]
    assert last["step"] == 2 and last["checkpoint"].endswith("/last-good/step-2/1.pt")
    assert torch.load(last["checkpoint"])["model"]["0.weight"].isfinite().all()
    assert len(list(tmp_path.glob("finitude-runs/*/last-good/*"))) == 1


def test_kept_links_are_not_written_over(tmp_path):
    report = types.SimpleNamespace(run_directory=lambda: str(tmp_path / "run"), complain=pytest.fail)
    kept, path = quarantine.Quarantine(report), tmp_path / "last.pt"
    path.write_text("one")
    kept.keep(str(path), 1, has_weights=True)
    ours = pathlib.Path(kept.kept(str(path)))
    assert ours.samefile(path)
    kept.part_from(str(path))
    path.write_text("two")  # by a save that is not good
    assert ours.read_text() == "one"
    kept.part_from(str(path))
    assert path.read_text() == "two"
    kept.keep(str(path), 2, has_weights=True)
    assert not ours.exists() and pathlib.Path(kept.kept(str(path))).read_text() == "two"


def test_files_of_one_checkpoint_are_kept_together(tmp_path):
    report = types.SimpleNamespace(run_directory=lambda: str(tmp_path / "run"), complain=pytest.fail)
    kept = quarantine.Quarantine(report)
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / "dcp").mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.pt", "dcp/part"):
            (folder / name).write_text(f"{step}")
        kept.keep(str(folder / "model.safetensors"), step, has_weights=True)
        kept.keep(str(folder / "optimizer.pt"), step, has_weights=False)
        kept.keep(str(folder / "dcp"), step, has_weights=True)
    found = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert found == {f"last-good/step-2/{name}" for name in ("model.safetensors", "optimizer.pt", "dcp/part")}


def test_off_looks_at_nothing(tmp_path):
    result = run(tmp_path, BAD, "--checkpoints", "off", "--on-alarm", "warn")
    assert events_of(result) == [] and "checkpoints" not in result.report, result.text()


def test_an_unknown_word_is_refused(tmp_path):
    result = run(tmp_path, BAD, "--checkpoints", "refsue")
    assert result.code == 2 and "did you mean 'refuse'?" in result.err, result.err


def test_weights_of_a_module_alone_are_known():
    looked = saved_values.look({"model": torch.nn.Linear(2, 2).state_dict()}, (), ("weight", "bias"))
    assert looked.has_weights and not saved_values.look({"lr": torch.ones(1)}, (), ("weight",)).has_weights


def test_a_best_score_of_lightning_begins_as_inf():
    nan, inf = torch.tensor(float("nan")), torch.tensor(float("inf"))
    found = [saved_values.look({"callbacks": {"best": one}}, (), ()).why_bad for one in (inf, nan, inf.expand(2))]
    assert [bool(why) for why in found] == [False, True, True]


def test_an_alarm_names_the_last_good_one(tmp_path):
    result = run(tmp_path, TRAINING + "step(); save('a.pt'); step(float('nan'))\n")
    assert result.the_alarm()["last_good"] == {"checkpoint": str(tmp_path / "a.pt"), "step": 1}
    assert "last good" in result.err, result.err


def test_growth_marks_what_is_written_after_it(tmp_path):
    text = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(80):
    x, y = torch.randn(64, 16), torch.randn(64, 1)
    opt.zero_grad()
    ((model(x) - y).pow(2).mean() * 1.15 ** max(0, i - 20)).backward()
    opt.step()
    if i in (10, 70):
        torch.save(model.state_dict(), f"{i}.pt")
"""
    result = run(tmp_path, text)
    assert [event[::2] for event in events_of(result)] == [("10.pt", "good"), ("70.pt", "after-onset")], result.text()
    assert result.report["checkpoints"]["last_good"]["step"] == 11


@pytest.mark.parametrize(("end", "is_warned"), [("", True), ("os.kill(os.getpid(), 9)", True), ("1 / 0", False)])
def test_what_was_written_between_onset_and_warning_is_not_good(tmp_path, end, is_warned):
    """Nobody knows of the growth yet when the second file is written. Without warnings the alarm knows its onset."""
    text = f"""
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range({80 if is_warned else 260}):
    x, y = torch.randn(64, 16), torch.randn(64, 1)
    opt.zero_grad()
    ((model(x) - y).pow(2).mean() * 2.0 ** max(0, i - 40)).backward()
    opt.step()
    if i in (39, 43):
        torch.save(model.state_dict(), f"{{i}}.pt")
{end}
"""
    result = run(tmp_path, text, *([] if is_warned else ["--warnings", "off"]))
    assert [event[2] for event in events_of(result)] == ["good", "good"], result.text()
    (line,) = json.loads(helpers.offline("list", "--json", tmp_path / "finitude-runs")[1])
    assert line["last_good"] == str(tmp_path / "39.pt"), line
    if not is_warned:
        assert result.the_alarm()["last_good"]["step"] == 40
        words = " ".join(result.err.split())
        assert f"waybackstartfrom{tmp_path}/39.pt,ofstep40,frombeforetheonsetatstep4" in words.replace(" ", ""), words
        assert "--on-alarm skip continues" not in words


@pytest.mark.parametrize(
    "lines",
    [
        "import safetensors.torch; safetensors.torch.save_file(model.state_dict(), 'x')",
        "from safetensors.torch import save_file as keep; keep(model.state_dict(), 'x')",
        "import torch.distributed.checkpoint as dcp; dcp.save(model.state_dict(), checkpoint_id='x')",
        "import torch.distributed.checkpoint as dcp; dcp.async_save(model.state_dict(), checkpoint_id='x').result()",
        "with open('x', 'wb') as f: torch.save(model, f)",
    ],
    ids=["safetensors", "another name", "dcp", "dcp in a thread", "open file"],
)
def test_other_writers_are_noted_once(tmp_path, lines):
    early = lines.partition(";")[0] + "\n" if "; " in lines else ""
    result = run(tmp_path, early + TRAINING + f"step()\n{lines}\n")
    assert events_of(result) == [("x", 1, "good", True)], result.text()


LIGHTNING = """
import io, torch
def _atomic_save(checkpoint, filepath):
    memory = io.BytesIO()
    torch.save(checkpoint, memory)
    if "://" not in str(filepath):
        open(filepath, "wb").write(memory.getvalue())
"""


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_lightning_s_are_noted(tmp_path, package):
    """It writes through memory. The names are those of Lightning 2.6, which tests/frameworks has itself."""
    folder = tmp_path / package.replace(".", "/") / "utilities"
    folder.mkdir(parents=True)
    (folder / "cloud_io.py").write_text(LIGHTNING)
    saves = """
step(); _atomic_save(model.state_dict(), "a.ckpt")
model[0].weight.data.fill_(float("nan"))
_atomic_save(filepath="a.ckpt", checkpoint=model.state_dict())
_atomic_save(model.state_dict(), "s3://bucket/b.ckpt")
"""
    text = f"from {package}.utilities.cloud_io import _atomic_save\n" + TRAINING + saves
    result = run(tmp_path, text, "--checkpoints", "quarantine")
    expected = [("a.ckpt", 1, "good", True), ("a.ckpt", 1, "bad", True), ("b.ckpt", 1, "bad", True)]
    assert events_of(result) == expected, result.text()
    assert (tmp_path / "quarantine/a.ckpt").exists() and "checkpoint s3://bucket/b.ckpt is bad" in result.err


def test_schedulers_and_memory_are_no_checkpoints(tmp_path):
    result = run(tmp_path, TRAINING + "import io\nstep(); torch.save({'epoch': 3}, 's.pt'); save(io.BytesIO())\n")
    assert events_of(result) == [] and "checkpoints" not in result.report, result.text()


def test_killed_run_lists_its_last_good_checkpoint(tmp_path):
    result = run(
        tmp_path, TRAINING + "step(); save('a.pt'); step(); save('b.pt')\nos.remove('b.pt'); os.kill(os.getpid(), 9)\n"
    )
    assert result.code != 0
    (line,) = json.loads(helpers.offline("list", "--json", tmp_path / "finitude-runs")[1])
    assert (line["state"], line["last_good"]) == ("killed", str(tmp_path / "a.pt")), line
