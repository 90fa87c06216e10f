"""The programs of examples/distributed: what each rank is said to have seen."""

import pathlib

import pytest
import torch
import torch.distributed.checkpoint as dcp

from finitude.capsules import step_manifest
from finitude.cli import export_dcp, offline, replay_ranks
from process_support import warm_launcher, watched_ranks

pytestmark = pytest.mark.slow
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed"
# The line, and the phase of the birth on each rank.
PROGRAMS = {
    "ddp": ("return rows / rows.sum(1, keepdim=True)", {0: "communication", 1: "forward"}),
    "fsdp2": ("torch.log(x)", {0: "communication", 1: "forward"}),
    "tensor_parallel": ("torch.sqrt(x)", {0: "forward", 1: "forward"}),
    "pipeline": ("x / x.sum(1, keepdim=True)", {0: "forward", 1: "communication"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_names_line_and_rank(tmp_path, capsys, name):
    line, phases = PROGRAMS[name]
    got = watched_ranks(tmp_path, *warm_launcher(tmp_path), str(EXAMPLES / f"{name}.py"), "--nan")
    births = {a["rank"]: a["births"][0] for a in got.alarms if a["step"] == 6}
    assert {rank: birth["phase"] for rank, birth in births.items()} == phases, got.text()
    assert all(line in b["source"] for b in births.values() if b["phase"] == "forward"), births
    assert got.code != 0
    for alarm in got.alarms:  # what other ranks gave stays as it is, whatever is changed here
        tried = [e["name"] for e in alarm["cause"]["experiments"] if e["name"].startswith("whole step")]
        assert not tried or alarm["cause"]["class"] != "other-rank", tried
    (run,) = (tmp_path / "finitude-runs").iterdir()
    assert_each_rank_replays(run, phases, capsys)
    for alarm in got.alarms:
        if alarm["step"] == 6 and phases[alarm["rank"]] == "communication":
            assert f"came from rank {1 - alarm['rank']}, where aten::" in alarm["cause"]["text"], alarm["cause"]
    if name == "fsdp2":
        assert_exports_whole_state(run, tmp_path / "dcp")


def assert_each_rank_replays(run, phases, capsys):
    """By itself, with the recorded results of its collective operations."""
    document = step_manifest.read(run / "step-000006.json")
    assert {one["rank"]: one["first"] for one in document["ranks"]} == {r: p == "forward" for r, p in phases.items()}
    assert document["groups"][0]["ranks"] == [0, 1] and all(one["capsule"] for one in document["ranks"]), document
    (run / "step-000006.json").unlink()  # as where the launcher was killed
    _, made = replay_ranks.manifest_of(str(run))
    assert made == {key: value for key, value in document.items() if key not in ("checksum", "has_checksum")}
    capsys.readouterr()
    assert offline.replay([str(run)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "identical" in line]
    assert [line.split(": ")[:2] for line in said] == [["rank 0", "identical"], ["rank 1", "identical"]]


def assert_exports_whole_state(run, folder):
    code, notes = export_dcp.write(str(run), str(folder))
    assert code == 0, notes
    into = {
        "model": {"up.weight": torch.full((32, 8), torch.nan)},
        "optimizer": {"state": {"up.weight": {"exp_avg": torch.full((32, 8), torch.nan)}}},
    }
    dcp.load(into, checkpoint_id=folder, no_dist=True)
    assert all(
        t.isfinite().all() for t in (into["model"]["up.weight"], into["optimizer"]["state"]["up.weight"]["exp_avg"])
    )


def test_a_healthy_one_is_silent(tmp_path):
    got = watched_ranks(tmp_path, *warm_launcher(tmp_path), str(EXAMPLES / "fsdp2.py"))
    got.assert_silent()
    assert got.code == 0 and "loss" in got.out
