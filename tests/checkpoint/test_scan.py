"""`finitude scan` on files that torch, safetensors and DCP write, against what torch finds in their tensors."""

import collections
import json
import subprocess
import warnings

import pytest
import torch

import helpers

BAD = (float("nan"), float("inf"), float("-inf"))


def scan(*paths):
    """(exit code, {path: {tensor: finding}}, standard error)"""
    code, out, err = helpers.offline("scan", "--json", *map(str, paths))
    files = json.loads(out)["files"] if out else []
    return code, {one["path"]: {bad["tensor"]: bad for bad in one.get("bad", ())} for one in files}, err


def expected(tensor):
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.double()
    first = (~torch.isfinite(tensor.double() if not tensor.is_complex() else tensor)).nonzero()
    return {
        "nan": int(torch.isnan(values).sum()),
        "pos_inf": int(torch.isposinf(values).sum()),
        "neg_inf": int(torch.isneginf(values).sum()),
        "first": first[0].tolist() if len(first) else None,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def check(found, tensors):
    bad = {name: expected(tensor) for name, tensor in tensors.items()}
    bad = {name: about for name, about in bad.items() if about["first"] is not None}
    assert {name: {key: one[key] for key in next(iter(bad.values()))} for name, one in found.items()} == bad


def spoiled(tensor, seed=0):
    """With some elements of BAD."""
    generator = torch.Generator().manual_seed(seed)
    flat = tensor.reshape(-1)
    for value in BAD:
        flat[torch.randint(len(flat), (2,), generator=generator)] = value
    return flat.view(tensor.shape)


def test_every_layout_of_torch_save(tmp_path):
    base = spoiled(torch.randn(6, 8, 4))
    tensors = {
        "whole": base,
        "row": base[2],
        "column": base[:, 3],
        "transposed": base.permute(2, 0, 1),
        "strided": base[::2, 1::3],
        "expanded": base[:, :, :1].expand(6, 8, 5),
        "overlapping": torch.as_strided(base, (5, 7), (1, 1), 2),
        "empty": base[:0],
        "one": torch.tensor(float("nan")),
        "sound": torch.randn(5),
        "own": spoiled(torch.randn(3, 50)).t(),
        "channels_last": spoiled(torch.randn(2, 3, 4, 5)).contiguous(memory_format=torch.channels_last),
    }
    torch.save(tensors, tmp_path / "x.pt")
    code, found, err = scan(tmp_path / "x.pt")
    assert (code, err) == (1, "")
    check(found[str(tmp_path / "x.pt")], tensors)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
]  # fmt: skip


def test_every_dtype(tmp_path):
    tensors = {str(dtype): spoiled(torch.randn(9, 7)).to(dtype) for dtype in DTYPES}
    tensors |= {"int": torch.arange(5), "bool": torch.tensor([True])}
    torch.save(tensors, tmp_path / "x.pt")
    code, found, _ = scan(tmp_path / "x.pt")
    assert code == 1
    # Names are keys, which may have dots.
    check(
        found[str(tmp_path / "x.pt")],
        {name: one for name, one in tensors.items() if one.is_floating_point() or one.is_complex()},
    )


def test_optimizer_state_and_nested_objects(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.named_parameters(), amsgrad=True)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][2]["exp_avg_sq"][1, 3] = -1e-3
    state["state"][3]["max_exp_avg_sq"][0] = float("inf")
    nested = {
        "model": model.state_dict(),
        "optimizer": state,
        "deep": [({"x": collections.defaultdict(list, y=[torch.tensor([float("nan")])])},)],
        "parameter": torch.nn.Parameter(torch.tensor([1.0, float("-inf")])),
        "epoch": 3,
        "text": "x",
    }
    torch.save(nested, tmp_path / "x.pt")
    code, found, _ = scan(tmp_path / "x.pt")
    found = found[str(tmp_path / "x.pt")]
    assert code == 1 and set(found) == {
        "optimizer.state.2.exp_avg_sq",
        "optimizer.state.3.max_exp_avg_sq",
        "deep.0.0.x.y.0",
        "parameter",
    }
    moment = found["optimizer.state.2.exp_avg_sq"]
    assert (moment["parameter"], moment["negative"], moment["first_negative"]) == ("1.weight", 1, [1, 3])


def test_whole_module_has_names_of_its_state(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight[1, 0] = float("nan")
        model[1].running_var[1] = -1.0
    torch.save(model, tmp_path / "x.pt")
    _, found, _ = scan(tmp_path / "x.pt")
    assert set(found[str(tmp_path / "x.pt")]) == {"0.weight", "1.running_var"}


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": spoiled(torch.randn(4, 5)), "b": torch.randn(3).half(), "c": spoiled(torch.randn(30)).bfloat16()}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    code, found, _ = scan(tmp_path / "x.safetensors")
    assert code == 1
    check(found[str(tmp_path / "x.safetensors")], tensors)


def test_dcp_folders_and_searched_ones(tmp_path):
    import torch.distributed.checkpoint as dcp

    tensors = {"model": {"w": spoiled(torch.randn(4, 5)), "b": torch.randn(3)}, "lr": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process, as meant
        dcp.save(tensors, checkpoint_id=tmp_path / "all" / "step-1")
    torch.save({"w": torch.randn(3)}, tmp_path / "all" / "sound.pt")
    (tmp_path / "all" / "notes.txt").write_text("no checkpoint")
    code, found, err = scan(tmp_path / "all")
    assert (code, err) == (1, "") and set(found) == {str(tmp_path / "all" / name) for name in ("step-1", "sound.pt")}
    check(found[str(tmp_path / "all" / "step-1")], {"model.w": tensors["model"]["w"]})
    assert found[str(tmp_path / "all" / "sound.pt")] == {}


def test_exit_codes_and_what_is_printed(tmp_path):
    sound, bad, old, cut = (tmp_path / name for name in ("sound.pt", "bad.pt", "old.pt", "cut.pt"))
    torch.save({"w": torch.ones(3)}, sound)
    torch.save({"w": torch.tensor([1.0, float("nan")])}, bad)
    torch.save({"w": torch.ones(3)}, old, _use_new_zipfile_serialization=False)
    cut.write_bytes(sound.read_bytes()[:-100])
    assert helpers.offline("scan", str(sound)) == (0, f"{sound}: 1 tensor is finite (torch zip, 12 bytes)\n", "")
    for held, said in (
        ({"w": torch.ones(3), "n": torch.ones(2).long()}, "1 tensor is finite (torch zip, 12 bytes"),
        ({"n": torch.ones(2).long()}, "no tensors are of floating point (torch zip, 0 bytes"),
    ):
        torch.save(held, tmp_path / "mixed.pt")
        text = f"{tmp_path / 'mixed.pt'}: {said}, 1 of integers and the like not read)\n"
        assert helpers.offline("scan", str(tmp_path / "mixed.pt")) == (0, text, "")
    code, out, _ = helpers.offline("scan", str(bad))
    assert code == 1 and "w (float32 [2]): 1 NaN, 0 +Inf, 0 -Inf, first at [1]" in out
    assert helpers.offline("scan", "-q", str(bad))[:2] == (1, "")
    code, _, err = helpers.offline("scan", str(old))
    assert code == 4 and "before version 1.6" in err
    assert helpers.offline("scan", str(cut))[0] == 3
    assert helpers.offline("scan", str(tmp_path / "none.pt"))[0] == 3
    assert helpers.offline("scan", str(sound), str(cut), str(bad))[0] == 1
    assert helpers.offline("scan")[0] == 2


def test_nothing_in_a_file_is_executed(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"x": Hostile(), "w": torch.tensor([float("nan")])}, tmp_path / "x.pt")
    code, found, _ = scan(tmp_path / "x.pt")
    assert code == 1 and set(found[str(tmp_path / "x.pt")]) == {"w"}
    assert not (tmp_path / "executed").exists()


SHARDED = """
import os, sys, warnings, torch, torch.distributed as dist
warnings.simplefilter("ignore")
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
w = torch.arange(24.0).reshape(6, 4)
w[4, 1], w[0, 2], w[5, 0] = float("nan"), float("inf"), float("nan")
sharded = distribute_tensor(w, init_device_mesh("cpu", (2,)), [Shard(0)])
dcp.save({"w": sharded}, checkpoint_id=f"{folder}/saved")
dist.destroy_process_group()
"""


def test_shards_are_one_tensor(tmp_path):
    script = helpers.write_script(tmp_path, SHARDED)
    words = *helpers.python_of_ranks(), str(script)
    ranks = [subprocess.Popen([*words, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(helpers.LIMIT) for process in ranks] == [0, 0]
    code, found, _ = scan(tmp_path / "saved")
    (bad,) = found[str(tmp_path / "saved")].values()
    assert code == 1
    assert (bad["nan"], bad["pos_inf"], bad["first"], bad["shape"]) == (2, 1, [0, 2], [6, 4])
