"""`finitude export --to dcp`: what the capsules of several ranks hold of a sharded model becomes one checkpoint."""

import json
import types

import pytest
import torch
import torch.distributed.checkpoint as dcp

from finitude import _native
from finitude.capsules import start_check, whole_state
from finitude.cli import export_dcp, offline
from hostile_files import CAPSULE


def spec(shape, part=None, begins=None, partial=False):
    record = {"dtype": "float32", "shape": shape}
    return {**record, "part": {"shape": part, "begins": begins, "is_partial": partial}} if part is not None else record


def start_of(tensors, state=None):
    names = [name for name in tensors if "." not in name]
    record = {"class": "AdamW", "ordinal": 0, "failed": True, "buffers": {}, "scalars": {}, "groups": [{"lr": 0.5}]}
    record.update({"parameters": {n: n for n in names}, "state": state or {}})
    return {"tensors": tensors, "optimizers": [record], "batches": [], "generators": None, "scaler": None}


def ranks_of(monkeypatch, *ranks):
    """Each (specs, values by name, state)."""

    def read(folder):
        specs, values, state = ranks[int(folder)]
        data = {name: bytes(memoryview(torch.tensor(v).numpy()).cast("B")) for name, v in values.items()}
        return "", json.dumps({"start": start_of(specs, state)}), data, []

    monkeypatch.setattr(whole_state, "_native", types.SimpleNamespace(capsule_read=read))
    return {rank: str(rank) for rank in range(len(ranks))}


def test_shards_of_ranks_become_one_tensor(monkeypatch):
    state = {"w": {"exp_avg": "w.m"}}
    top = {"w": spec([3, 2], [2, 2], [0, 0]), "w.m": spec([3, 2], [2, 2], [0, 0]), "b": spec([1])}
    low = {"w": spec([3, 2], [1, 2], [2, 0]), "w.m": spec([3, 2], [1, 2], [2, 0]), "b": spec([1])}
    values = (
        {"w": [[0.0, 1], [2, 3]], "w.m": [[5.0, 5], [5, 5]], "b": [9.0]},
        {"w": [[4.0, 5]], "w.m": [[6.0, 6]], "b": [9.0]},
    )
    folders = ranks_of(monkeypatch, (top, values[0], state), (low, values[1], state))
    whole, notes = whole_state.read(folders, 2)
    assert whole["model"]["w"].tolist() == [[0, 1], [2, 3], [4, 5]] and whole["model"]["b"].tolist() == [9]
    assert whole["optimizer"]["state"]["w"]["exp_avg"].tolist() == [[5, 5], [5, 5], [6, 6]] and notes == []
    with pytest.raises(whole_state.Incomplete, match="a part of w is in no capsule: rank 1 left no capsule"):
        whole_state.read({0: "0"}, 2)


@pytest.mark.parametrize(
    "mine, theirs, why",
    [
        (spec([2]), spec([2]), "other bits on rank 1"),
        (spec([2]), spec([4], [2], [2]), "another shape"),
        (spec([2], [2], None), spec([2], [2], None), "torch does not say"),
        (spec([2], [2], None, True), spec([2], [2], None, True), "a sum over ranks"),
    ],
)
def test_what_cannot_be_put_together_is_named(monkeypatch, mine, theirs, why):
    folders = ranks_of(monkeypatch, ({"w": mine}, {"w": [1.0, 2]}, None), ({"w": theirs}, {"w": [3.0, 4]}, None))
    with pytest.raises(whole_state.Incomplete, match=why):
        whole_state.read(folders, 2)


def test_parts_outside_the_whole_are_refused():
    assert start_check.is_sound(start_of({"w": spec([4], [2], [2])}))
    for bad in (spec([4], [2], [3]), spec([4], [2, 1], [0, 0]), spec([4], [-1], [0]), spec([4], [2], "x")):
        assert not start_check.is_sound(start_of({"w": bad}))


def test_one_process_is_exported_and_loaded(tmp_path, capsys):
    assert offline.export([str(CAPSULE), "--to", "dcp"]) == 2 and "needs -o PATH" in capsys.readouterr().err
    code = offline.export([str(CAPSULE), "--to", "dcp", "-o", str(tmp_path / "dcp")])
    said = capsys.readouterr().err
    assert code == 0 and said == f"finitude: written to {tmp_path / 'dcp'}: the state of 1 of 1 ranks\n"
    why, text, data, _ = _native.capsule_read(str(CAPSULE))
    (record,) = (o for o in json.loads(text)["start"]["optimizers"] if o["failed"])
    name, key = next(iter(record["parameters"].items()))
    shape = json.loads(text)["start"]["tensors"][key]["shape"]
    into = {"model": {name: torch.zeros(shape)}}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert into["model"][name].numpy().tobytes() == data[key]
    assert export_dcp.write(str(CAPSULE), str(tmp_path / "dcp"))[0] == 4
    assert export_dcp.write(str(tmp_path), str(tmp_path / "other"))[0] == 3
