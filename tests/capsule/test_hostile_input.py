"""Every reader in Python of a file from elsewhere, on thousands of damaged ones: it refuses them in its own way, in
bounded time and memory, and leaves and reads nothing outside of their folder. What C++ reads has its targets in src
(*_fuzz.cpp); capsules are those of test_hostile_capsules.py."""

import contextlib
import copy
import json
import os
import pathlib
import struct

import pytest

import helpers
import mutations
from finitude.base import config
from finitude.base.git import head as git_head
from finitude.doctor import after
from finitude.report import merge
from finitude.rerun import restart_ranks
from hostile_files import ABOUT, REPORTS, harmless, put

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("word", ["report", pytest.param("dump", marks=pytest.mark.thorough), "list"])
def test_reports(tmp_path, word):
    """3000 of them. `report` reads those of 30 processes of a run at a time, `list` those of 30 runs."""
    many, refused = (1 if word == "dump" else 30), []
    folders = [tmp_path / "run" / f"pid-{number}" for number in range(many)]

    def one(draw):
        for folder in folders:
            text = mutations.text_of(mutations.damaged(draw.choice(REPORTS), draw), draw)
            put(folder / "report.json", text)
        code, out, err = helpers.offline(word, folders[0] if word == "dump" else tmp_path / "run")
        assert code in (0, 3) and (out or err or word == "list")
        assert word == "dump" or harmless(out), out
        assert (code == 3) == (err.count("finitude: ") > 0)
        refused.extend(line for line in err.splitlines() if line.startswith("finitude: "))

    mutations.tries(3000 // many, 1, one)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["report.json"] * many
    assert word == "list" or 100 < len(refused) * mutations.SHARE
    assert word != "report" or len(refused) * mutations.SHARE < 2990  # `dump` refuses what has no trace, too


OWN = {
    "outcome": "clean",
    "reason": "",
    "alarms": [],
    "advisories": [],
    "torch": "",
    "finitude": "",
    "watched": {**dict.fromkeys(merge.COUNTS, 0), "not_watched": []},
}


def test_runs_of_several_processes(tmp_path):
    """What members left, for the command line and for one report of all."""
    ring = struct.pack("<8s4I5Q", b"FitRing\n", 1, 128, 64, 4096, 0, 0, 0, 0, 7) + bytes(128)

    def one(draw):
        name = draw.choice(
            ["rank-0", "rank-1", "pid-77", "rank-\u00b2", "rank-", "pid-x", "rank-99999999999999999999", "rank-0-2"]
        )
        folder = tmp_path / "run" / name
        if draw.random() < 0.9:
            put(folder / "report.json", mutations.text_of(mutations.damaged(draw.choice(REPORTS), draw), draw))
        if draw.random() < 0.2:
            put(folder / "steps.ring", mutations.damaged_bytes(ring, draw))
        if draw.random() < 0.2:
            put(folder / "unwatched.json", mutations.text_of(mutations.damaged({"reason": "no torch"}, draw), draw))
        found = merge.members(str(tmp_path / "run"))
        whole = merge.merged(copy.deepcopy(OWN), found)
        assert isinstance(merge.closing_line(whole), str) and whole["watched"]["steps"] >= 0
        for member in restart_ranks._orders(found, str(tmp_path / "nowhere")):
            raise AssertionError(member)
        code, out, err = helpers.offline("report", tmp_path / "run")
        assert code in (0, 3) and out + err
        for file in ("report.json", "steps.ring", "unwatched.json"):
            with contextlib.suppress(FileNotFoundError):
                (folder / file).unlink()
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    mutations.tries(3000, 8, one)


def test_orders_for_a_second_run_and_their_results(tmp_path):
    report = next(r for r in REPORTS if r["outcome"] == "alarm")
    report = copy.deepcopy(report)
    alarm = report["alarms"][0]
    alarm.update(rerun="not-run", births=[], capsule=None)
    order = {
        "step": alarm["step"],
        "ordinal": 0,
        "ranks": 2,
        "listed": 0,
        "capsule": str(tmp_path / "none"),
        "capsule_in_report": "none",
        "seeds": {},
    }
    result = {
        "findings": {"births": [], "cause": None, "fix": None, "path": []},
        "step": alarm["step"],
        "rerun": "persistent",
        "verified": True,
        "text": "",
        "capsule": False,
        "no_capsule": "",
    }
    folder = tmp_path / "rank-0"
    taken = []

    def one(draw):
        which = draw.random() < 0.5
        put(
            folder / restart_ranks.ORDER,
            mutations.text_of(mutations.damaged(order, draw), draw) if which else json.dumps(order).encode(),
        )
        member = merge.Member(str(folder), copy.deepcopy(report))
        for wanted in restart_ranks._orders([member], str(tmp_path)):
            put(
                pathlib.Path(wanted.result),
                json.dumps(result).encode() if which else mutations.text_of(mutations.damaged(result, draw), draw),
            )
            if wanted.take_over("", False):
                taken.append(1)
                assert merge.merged(copy.deepcopy(OWN), [member])["outcome"] == "alarm"
            os.unlink(wanted.result)

    mutations.tries(3000, 9, one)
    assert len(taken) * mutations.SHARE > 300
    assert set(mutations.tree(tmp_path)) <= {
        "rank-0",
        "rank-0/" + restart_ranks.ORDER,
        "rank-0/report.json",
        "rank-0/report.html",
    }


def test_what_the_doctor_reads(tmp_path):
    ring = _ring_of_a_run(tmp_path)

    def one(draw):
        folder = tmp_path / "run"
        put(folder / "report.json", mutations.text_of(mutations.damaged(draw.choice(REPORTS), draw), draw))
        put(folder / "step-000002" / "capsule.json", mutations.text_of(mutations.damaged(ABOUT, draw), draw))
        put(folder / "steps.ring", mutations.damaged_bytes(ring, draw) if draw.random() < 0.5 else ring)
        for path in (folder, folder / "step-000002", folder / "steps.ring"):
            with contextlib.suppress(after.Unreadable):
                for run in after.read(str(path)):
                    for about in run.capsules:
                        after._has_float16(about)

    mutations.tries(2000, 11, one)


def _ring_of_a_run(tmp_path):
    folder = tmp_path / "first"
    folder.mkdir()
    helpers.run(
        folder,
        "import torch\nw = torch.ones(2, requires_grad=True)\no = torch.optim.SGD([w], lr=0.1)\n"
        "for i in range(3):\n    o.zero_grad()\n    w.sum().backward()\n    o.step()\n",
    )
    return next(folder.rglob("steps.ring")).read_bytes()


def test_rings_of_runs_that_left_no_report(tmp_path):
    sound = _ring_of_a_run(tmp_path)[:2048]

    def one(draw):
        data = bytearray(sound)
        at = draw.randrange(128)  # its header
        data[at : at + 1] = bytes([draw.randrange(256)])
        put(
            tmp_path / "run" / "steps.ring",
            mutations.damaged_bytes(bytes(data), draw) if draw.random() < 0.3 else bytes(data),
        )
        code, out, err = helpers.offline("report", tmp_path / "run")
        assert code in (0, 3) and out + err

    mutations.tries(3000, 12, one)


TOML = b"""[tool.finitude]
on_alarm = "skip"
max_skips = 3
capsule_max = 100
redact = true
restart_args = "--resume {newest:ckpt/*.pt}"
"""


def test_settings(tmp_path):
    """Of a file that was named, what is wrong with it; a pyproject.toml of the directory is also other tools'
    business."""
    refused = []

    def one(draw):
        data = mutations.damaged_bytes(TOML, draw)
        if draw.random() < 0.1:
            data = draw.choice(
                (
                    b"tool = 3",
                    b"[tool]\nfinitude = 3",
                    b"[[tool]]",
                    b"a = " + b"[" * 50_000,
                    b"tool.finitude.on_alarm = [1]",
                    b"\xff\xfe",
                    b"[tool.finitude]\nruns = {}",
                )
            )
        for name in ("pyproject.toml", "other.toml"):
            put(tmp_path / name, data)
        for file in (None, str(tmp_path / "other.toml")):
            try:
                config.load({}, file, {}, str(tmp_path))
            except config.UsageError as e:
                refused.append(str(e))

    mutations.tries(4000, 13, one)
    assert len(refused) * mutations.SHARE > 500 and all(refused)


def test_the_commit_of_a_repository_is_a_commit(tmp_path):
    """A repository from elsewhere names files that are read: what is not a commit does not get into a capsule."""
    secret = tmp_path / "secret"
    secret.write_text("not to be shown\n")
    git = tmp_path / "project" / ".git"
    files = {
        "HEAD": b"ref: refs/heads/main\n",
        "refs/heads/main": b"a" * 40 + b"\n",
        "packed-refs": b"# pack-refs\n" + b"b" * 40 + b" refs/heads/main\n",
    }
    for name, data in files.items():
        put(git / name, data)
    assert git_head(str(git.parent)) == {"commit": "a" * 40, "branch": "refs/heads/main"}
    hostile = [
        b"ref: ../../secret",
        b"ref: " + str(secret).encode(),
        b"ref: refs/heads/../../../../secret",
        b"not to be shown",
        b"ref: \0",
        b"ref: ",
        b"ref: " + b"x" * 5000,
        b"ref: refs",
        b"\xff\xff",
    ]
    known = set()

    def one(draw):
        for name, data in files.items():
            put(git / name, mutations.damaged_bytes(data, draw) if draw.random() < 0.4 else data)
        if draw.random() < 0.3:
            put(git / "HEAD", draw.choice(hostile))
        if draw.random() < 0.1:
            put(git / "commondir", draw.choice([b"..", b"../..", b"/", b"\0", b"", str(tmp_path).encode()]))
        found = git_head(str(git.parent))
        assert "not to be shown" not in json.dumps(found)
        if found is not None:
            assert (
                found["commit"] is None
                or set(found["commit"]) <= set("0123456789abcdef")
                and len(found["commit"]) in (40, 64)
            )
            known.add(found["commit"])
        with contextlib.suppress(FileNotFoundError):
            (git / "commondir").unlink()

    mutations.tries(4000, 14, one)
    assert {None, "a" * 40} <= known
