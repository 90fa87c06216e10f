"""Paths that are not UTF-8, and those that are: a program is watched wherever it lies."""

import json
import os
import zipfile

import pytest

import helpers

FAULTY = (
    helpers.TRAINING
    + """
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) / int(k != 3)  # birth
    loss.backward()
    opt.step()
"""
)


@pytest.mark.fast
@pytest.mark.parametrize(
    "folder", [b"lat\xe9n", "\u00fcn\u00ef \u65e5\u672c".encode(), b"a \xff b"], ids=["latin-1", "utf-8", "no text"]
)
def test_a_program_is_watched_wherever_it_lies(tmp_path, folder):
    at = os.path.join(os.fsencode(tmp_path), folder)
    os.mkdir(at)
    script = os.fsencode(helpers.write_script(tmp_path, FAULTY, "train.py"))
    os.rename(script, os.path.join(at, b"train.py"))
    # One in an interpreter of its own, which makes paths of what the system gives.
    done = helpers.finitude(os.fsdecode(at), "run", "--report", "r.json", "train.py", cold=folder == b"a \xff b")
    err = done.err
    assert done.code == 1 and "switched off" not in err and "could not be made" not in err, err
    with open(os.path.join(at, b"r.json"), encoding="utf-8") as f:
        (alarm,) = json.load(f)["alarms"]
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"]) == (3, "persistent", "rewind"), alarm["rerun_text"]
    assert birth["source"].endswith("# birth") and "train.py" in birth["file"], birth
    plain = folder.decode(errors="replace").encode() == folder
    assert (alarm["capsule"] is not None) == plain
    assert ("is not UTF-8" in err) != plain


MODEL_IN_AN_ARCHIVE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 4)

    def forward(self, x):
        h = x / x.sum(1, keepdim=True)  # birth
        return self.lin(h)
"""
MAIN_IN_AN_ARCHIVE = """
import torch
from app.model import Model

torch.manual_seed(0)
data = torch.rand(24, 3)
data[13] = 0
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(data, 4):
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("place", ["folder", "archive"])
def test_program_in_archive_is_explained_with_its_lines(tmp_path, place):
    files = {"app/__init__.py": "", "app/model.py": MODEL_IN_AN_ARCHIVE, "__main__.py": MAIN_IN_AN_ARCHIVE}
    if place == "archive":
        with zipfile.ZipFile(tmp_path / "train", "w") as made:
            for name, text in files.items():
                made.writestr(name, text)
    else:
        (tmp_path / "train" / "app").mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "train" / name).write_text(text)
    done = helpers.finitude(tmp_path, "run", "--report", "r.json", "train")
    (alarm,) = json.loads((tmp_path / "r.json").read_text())["alarms"]
    birth = alarm["births"][0]
    assert done.code == 1 and (alarm["step"], alarm["rerun_by"]) == (3, "rewind"), done.text()
    assert birth["file"].endswith("train/app/model.py") and birth["source"].endswith("# birth"), birth
    assert birth["samples"] == [13] and ".clamp(min=1e-12)" in json.dumps(alarm["fix"]), alarm["fix"]
