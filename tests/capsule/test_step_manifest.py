"""The manifest of a bad step of several ranks: which capsules it names, what a reader refuses, and how it is replayed."""

import copy
import json
import os
import pathlib
import shutil

import pytest
import torch  # noqa: F401  its libraries

import mutations
from finitude.base import checked_json
from finitude.capsules import step_manifest
from finitude.cli import offline
from finitude.report import merge
from hostile_files import CAPSULE, put


def alarm(cause, phase, capsule):
    sink = {"kind": "loss", "name": "loss"}
    births = [{"phase": phase}]
    return {
        "step": 2,
        "optimizer": "Adam",
        "sink": sink,
        "cause": {"class": cause},
        "births": births,
        "capsule": capsule,
    }


def run_of(folder):
    """Of three ranks: one had the value, one got it, and one could write no capsule."""
    found = []
    for rank, cause, phase in (
        (0, "other-rank", "communication"),
        (1, "log-of-zero", "forward"),
        (2, "other-rank", "communication"),
    ):
        own, why = folder / f"rank-{rank}", []
        capsule = own / "step-000002"
        if rank != 2:
            shutil.copytree(CAPSULE, capsule)
        else:
            os.makedirs(own)
            why = ["a capsule of step 2: the disk is full"]
        said = alarm(cause, phase, str(capsule) if rank != 2 else None)
        found.append(merge.Member(str(own), {"alarms": [said], "advisories": [], "watched": {"not_watched": why}}))
    return found


def test_manifest_names_capsules_and_who_was_first(tmp_path):
    (path,) = step_manifest.write(str(tmp_path), run_of(tmp_path))
    document = step_manifest.read(path)
    assert os.path.basename(path) == "step-000002.json" and (document["step"], document["world_size"]) == (2, 3)
    assert [(one["rank"], one["capsule"], one["first"], one["why"]) for one in document["ranks"]] == [
        (0, "rank-0/step-000002", False, ""),
        (1, "rank-1/step-000002", True, ""),
        (2, None, False, "the disk is full"),
    ]
    assert step_manifest.capsules(path, document) == {r: str(tmp_path / f"rank-{r}" / "step-000002") for r in (0, 1)}
    line = step_manifest.one_line(path, document)
    assert line.startswith("step 2: capsules of 2 of 3 ranks in") and line.endswith("came from rank 1")
    document["ranks"][2]["first"] = True
    assert step_manifest.one_line(path, document).endswith("; values were made on ranks 1, 2")


def test_finite_rank_without_capsule_says_so(tmp_path):
    found = run_of(tmp_path)
    document = found[2].document
    document["watched"]["not_watched"], document["alarms"][0]["births"] = [], []
    (path,) = step_manifest.write(str(tmp_path), found)
    assert step_manifest.read(path)["ranks"][2]["why"].startswith("what this rank held was finite")


def test_one_process_has_no_manifest(tmp_path):
    shutil.copytree(CAPSULE, tmp_path / "rank-0" / "step-000002")
    said = alarm("log-of-zero", "forward", str(tmp_path / "rank-0" / "step-000002"))
    alone = merge.Member(str(tmp_path / "rank-0"), {"alarms": [said], "advisories": []})
    assert step_manifest.write(str(tmp_path), [alone]) == []


def test_ranks_of_a_run_replay_alone(tmp_path, capsys):
    step_manifest.write(str(tmp_path), run_of(tmp_path))
    assert offline.replay([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 0: identical") and lines[-1] == "rank 2: no capsule: the disk is full"
    assert offline.replay([str(tmp_path / "step-000002.json"), "--json", "--times", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["outcome"], [one["outcome"] for one in said["ranks"]]) == ("reproduced", ["reproduced"] * 2 + [None])
    assert offline.replay([str(tmp_path), "--script", "birth.py"]) == 2
    assert "of one rank: name its capsule" in capsys.readouterr().err


def test_damaged_capsule_of_one_rank_is_named(tmp_path, capsys):
    step_manifest.write(str(tmp_path), run_of(tmp_path))
    tape = tmp_path / "rank-1" / "step-000002" / "tape.bin"
    put(tape, tape.read_bytes()[:-3])
    assert offline.replay([str(tmp_path)]) == 3
    got = capsys.readouterr()
    assert "rank 0: identical" in got.out and "finitude: rank 1: " in got.err


def test_capsules_outside_the_run_are_refused(tmp_path):
    (path,) = step_manifest.write(str(tmp_path), run_of(tmp_path))
    document = step_manifest.read(path)
    for place in ("../rank-0/step-000002", "/rank-0/step-000002", "rank-1/step-000002", "rank-0/../step-000002", 3):
        other = copy.deepcopy(document)
        other["ranks"][0]["capsule"] = place
        with pytest.raises(step_manifest.Unusable):
            step_manifest.check(other)
    os.rename(tmp_path / "rank-0", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "rank-0")
    assert list(step_manifest.capsules(path, document)) == [1]
    put(pathlib.Path(path), pathlib.Path(path).read_bytes().replace(b"Adam", b"Adax"))
    with pytest.raises(step_manifest.Unusable, match="checksum"):
        step_manifest.read(path)


def test_hostile_manifests_are_refused_or_sound(tmp_path):
    (path,) = step_manifest.write(str(tmp_path), run_of(tmp_path))
    document = step_manifest.read(path)
    document["groups"] = [{"name": "0", "description": "default_pg", "backend": "gloo", "ranks": [0, 1, 2]}]
    sound = {key: value for key, value in document.items() if key not in ("checksum", "has_checksum")}
    refused = 0

    def one(draw):
        nonlocal refused
        put(pathlib.Path(path), mutations.text_of(mutations.damaged(sound, draw), draw))
        try:
            read = step_manifest.read(path)
        except step_manifest.Unusable:
            refused += 1
            return
        assert all(str(tmp_path) in folder for folder in step_manifest.capsules(path, read).values())
        step_manifest.one_line(path, read)

    mutations.tries(1500, 2, one)
    assert refused > 50
    put(pathlib.Path(path), checked_json.text_of(sound))
    step_manifest.read(path)
