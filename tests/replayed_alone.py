"""A capsule that a test's program left, replayed by the C++ program with nothing of Python's in reach."""

import json
import pathlib
import subprocess

from finitude import _native

PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")


def replayed(got):
    """The capsule is of the bad step: it comes out with the same bits, without Python."""
    alarm = got.the_alarm()
    assert alarm["capsule"], got.text()
    folder = got.folder / alarm["capsule"]
    assert json.loads((folder / "capsule.json").read_text())["replay"] == "identical"
    done = subprocess.run([PLAYER, folder], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
    assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr
    return json.loads((folder / "capsule.json").read_text())
