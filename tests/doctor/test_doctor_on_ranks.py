"""`torchrun ... -m finitude doctor train.py`: sharded models, and what the ranks found in one table."""

import json
import os
import pathlib
import subprocess
import threading

import pytest
import torch  # noqa: F401  its libraries

from finitude.doctor import command, measure, rank_findings
from process_support import TORCHRUN, warm_launcher

TRAINS = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))
mesh = init_device_mesh("cpu", (2,))
for layer in net:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
rate = 0.0 if sys.argv[1:] == ["still"] and dist.get_rank() == 1 else 0.1
opt = torch.optim.AdamW(net.parameters(), lr=rate)
for _ in range(4):
    opt.zero_grad()
    nn.functional.cross_entropy(net(torch.randn(6, 8)), torch.randint(0, 4, (6,))).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
"""


def examined(folder, start, *words):
    script = pathlib.Path(folder) / "train.py"
    script.write_text(TRAINS)
    return subprocess.run(
        [*start, "-m", "finitude", "doctor", "--json", "--steps", "3", script, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
    )


@pytest.mark.slow
def test_a_sharded_model_is_sound(tmp_path):
    got = examined(tmp_path, (*TORCHRUN, "2"))
    found = json.loads(got.stdout)
    assert got.returncode == 0 and found["ranks"] == [0, 1], got.stderr
    assert found["findings"] == [] and found["trouble"] == [] and found["not_looked_at"] == [], found
    assert not list(tmp_path.glob("finitude-doctor-*")), "what the ranks met in is gone"


@pytest.mark.slow
def test_what_one_rank_finds_names_it(tmp_path):
    got = examined(tmp_path, warm_launcher(tmp_path), "still")
    (found,) = json.loads(got.stdout)["findings"]
    assert found["name"] == "parameters-move" and found["text"].endswith("(rank 1)"), found
    assert found["evidence"]["ranks"] == [1]


def finding(check, line=1):
    return {"check": check, "seen_in": "steps", "verdict": "warn", "file": "a.py", "line": line, "text": check}


def test_what_all_find_is_said_once():
    documents = {0: {"findings": [finding("P1"), finding("P2")]}, 3: {"findings": [finding("P1"), finding("P1", 2)]}}
    found, ranks = rank_findings.merged(documents)
    assert ranks == [0, 3] and [(f["check"], f["line"], f["ranks"]) for f in found] == [
        ("P1", 1, [0, 3]),
        ("P2", 1, [0]),
        ("P1", 2, [3]),
    ]


def meet(monkeypatch, tmp_path, ranks, seconds, expected=2):
    monkeypatch.setattr(rank_findings.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(rank_findings, "FOR_OTHERS", 0.0)
    answers = {}

    def come(rank):
        meeting = rank_findings.Meeting(rank, rank, expected)
        answers[rank] = meeting.bring({"findings": [], "of": rank}, seconds)
        if answers[rank] is not None:
            meeting.end()

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_the_first_rank_prints_for_all(monkeypatch, tmp_path):
    answers = meet(monkeypatch, tmp_path, (0, 1), 20.0)
    assert answers[1] is None and sorted(answers[0]) == [0, 1] and answers[0][1]["of"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_come_is_not_waited_for(monkeypatch, tmp_path):
    assert list(meet(monkeypatch, tmp_path, (0,), 0.2)[0]) == [0]
    assert meet(monkeypatch, tmp_path, (1,), 0.2)[1] is None


def test_a_folder_of_somebody_else_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_findings.tempfile, "gettempdir", lambda: str(tmp_path / "is-a-file"))
    (tmp_path / "is-a-file").write_text("")
    assert list(rank_findings.Meeting(1, 1, 2).bring({"findings": []}, 5.0)) == [1]


def test_memory_that_was_freed_is_not_read():
    freed = torch.ones(64)
    freed.untyped_storage().resize_(0)
    assert not measure.has_memory(freed) and measure.fingerprint(freed) == "" and measure.statistics(freed) is None


@pytest.mark.parametrize("words", [("torchrun", "train.py"), ("-m", "torch.distributed.run", "train.py")])
def test_a_launcher_is_no_script(capsys, words):
    assert command.main(words) == 2
    assert "is a launcher; let it start the doctor: torchrun" in capsys.readouterr().err
