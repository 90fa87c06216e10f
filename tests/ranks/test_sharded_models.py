"""Models whose parameters lie on several ranks: FSDP of both kinds, tensor parallel. What this rank holds of a gradient
is what it reads."""

import json
import pathlib
import subprocess

import pytest
import torch  # noqa: F401  its libraries

from finitude import _native
from helpers import LIMIT, write_script
from process_support import cold, launched, launcher
from sharded_programs import BEGIN, END, FSDP1, FSDP2, TENSOR_PARALLEL

pytestmark = pytest.mark.slow
PLAYER = pathlib.Path(_native.__file__).with_name("finitude-replay")

PROGRAM = (
    BEGIN.replace("OUT", "3")
    + """
for step in range(8):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    opt.zero_grad()
    out = model(x)
    if BAD: out = out / torch.relu(x.sum(1, keepdim=True))
    nn.functional.cross_entropy(out, y).backward()
    opt.step()
local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
sys.stdout.write(f"rank {rank} {all(bool(p.isfinite().all()) for p in local)}\\n")  # at once: both ranks write here
sys.stdout.flush()
"""
    + END
)
KINDS = {"fsdp2": FSDP2, "fsdp1": FSDP1, "tensor parallel": TENSOR_PARALLEL}


def program(kind, bad):
    """Of tensor parallel all ranks have the same batch, of the others each its own."""
    if kind == "tensor parallel":
        bad = bad.partition(" and ")[0]
    return (
        PROGRAM.replace("MAKE", KINDS[kind])
        .replace("SEED", "7" if kind == "tensor parallel" else "100 + rank")
        .replace("BAD", bad)
    )


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.thorough) if k == "fsdp1" else k for k in KINDS])
def test_bad_step_is_skipped_everywhere_explained_and_replayed(tmp_path, kind):
    """Each rank says that it sees it, so that none leaves it out alone."""
    got = launched(tmp_path, program(kind, "step == 5 and rank == 1"), "--on-alarm", "skip")
    assert got.code == 0 and [(a["step"], a["weights"]) for a in got.alarms] == [(5, "clean")] * 2, got.text()
    assert sorted(got.out.splitlines()) == ["rank 0 True", "rank 1 True"] and got.watched["steps"] == 8
    own = next(a for a in got.alarms if a["rank"] == 1)
    assert own["sink"]["kind"] == "loss", own["sink"]
    assert (own["rerun_by"], own["rerun"], own["rerun_verified"]) == ("rewind", "persistent", True), own["rerun_text"]
    birth = own["births"][0]
    assert birth["op"] == "aten::div" and birth["source"].startswith("if step == 5"), birth
    assert own["cause"]["class"] == "division-by-zero"
    other = next(a for a in got.alarms if a["rank"] == 0)
    if kind == "tensor parallel":
        assert other["births"][0]["op"] == "aten::div"
    else:
        assert (other["sink"]["kind"], other["cause"]["class"]) == ("gradient", "other-rank"), other["births"]
        assert "came from rank 1" in other["cause"]["text"] and {b["phase"] for b in other["births"]} == {
            "communication"
        }
    for alarm in got.alarms:
        folder = pathlib.Path(got.folder, alarm["capsule"])
        about = json.loads((folder / "capsule.json").read_text())
        assert (about["rank"], about["ranks"], about["replay"]) == (alarm["rank"], 2, "identical")
        assert about["alarm"]["births"] == alarm["births"]
        done = subprocess.run([PLAYER, folder], capture_output=True, text=True, timeout=120, env={"PATH": "/nowhere"})
        assert done.returncode == 0 and done.stdout.startswith("identical"), done.stdout + done.stderr


def test_a_healthy_run_is_silent(tmp_path):
    write_script(tmp_path, program("fsdp2", "False"))
    got = cold(tmp_path, *launcher(tmp_path, 2), "train.py", limit=3 * LIMIT)  # an interpreter for each rank
    got.assert_silent()
    assert sorted(got.out.splitlines()) == ["rank 0 True", "rank 1 True"]
    assert got.watched["gradients_scanned"] == 2 * 8 * 4
