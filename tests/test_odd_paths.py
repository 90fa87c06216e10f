"""Paths that are not UTF-8, and those that are: a program is watched wherever it lies."""

import json
import os
import subprocess
import sys

import pytest

import helpers

FAULTY = helpers.TRAINING + """
for k, x in enumerate(batches):
    opt.zero_grad()
    loss = loss_of(x) / int(k != 3)  # birth
    loss.backward()
    opt.step()
"""


@pytest.mark.fast
@pytest.mark.parametrize("folder", [b"lat\xe9n", "\u00fcn\u00ef \u65e5\u672c".encode(), b"a \xff b"], ids=["latin-1", "utf-8", "no text"])
def test_a_program_is_watched_wherever_it_lies(tmp_path, folder):
    at = os.path.join(os.fsencode(tmp_path), folder)
    os.mkdir(at)
    script = os.fsencode(helpers.write_script(tmp_path, FAULTY, "train.py"))
    os.rename(script, os.path.join(at, b"train.py"))
    done = subprocess.run([sys.executable, "-m", "finitude", "run", "--report", "r.json", "train.py"], cwd=at, capture_output=True, timeout=120)
    err = done.stderr.decode(errors="replace")
    assert done.returncode == 1 and "switched off" not in err and "could not be made" not in err, err
    with open(os.path.join(at, b"r.json"), encoding="utf-8") as f:
        alarm, = json.load(f)["alarms"]
    birth = alarm["births"][0]
    assert (alarm["step"], alarm["rerun"], alarm["rerun_by"]) == (3, "persistent", "rewind"), alarm["rerun_text"]
    assert birth["source"].endswith("# birth") and "train.py" in birth["file"], birth
    plain = folder.decode(errors="replace").encode() == folder
    assert (alarm["capsule"] is not None) == plain
    assert ("is not UTF-8" in err) != plain
