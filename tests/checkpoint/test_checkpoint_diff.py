"""`finitude diff` of two checkpoints, against what torch computes."""

import json

import pytest
import torch

import helpers
from finitude.cli import without_python


def diff(a, b):
    """(exit code, {tensor: difference})"""
    code, out, err = helpers.offline("diff", "--json", str(a), str(b))
    assert err == ""
    return code, {one["tensor"]: one for one in json.loads(out)["differences"]}


def saved(path, tensors):
    torch.save(tensors, path)
    return path


def test_values_names_shapes_and_dtypes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    first = {name: torch.randn(5, 7, generator=generator) for name in ("same", "moved", "half", "shape", "gone")}
    second = {name: tensor.clone() for name, tensor in first.items() if name != "gone"} | {"new": torch.ones(2)}
    second["moved"] = second["moved"].t().contiguous().t()  # another layout
    second["moved"][2, 3] += 0.5
    second["moved"][4, 1] *= 1 + 1e-6
    second["half"] = second["half"].half()
    second["shape"] = second["shape"].reshape(7, 5)
    code, found = diff(saved(tmp_path / "a.pt", first), saved(tmp_path / "b.pt", second))
    assert code == 1
    kinds = {name: one["kind"] for name, one in found.items()}
    assert kinds == {"moved": "values", "half": "dtype", "shape": "shape", "gone": "only-a", "new": "only-b"}
    gap = (first["moved"].double() - second["moved"].double()).abs()
    larger = torch.maximum(first["moved"].abs(), second["moved"].abs()).double()
    moved = found["moved"]["distance"]
    assert moved["elements"] == int((gap > 0).sum()) and moved["first"] == (gap > 0).nonzero()[0].tolist()
    assert moved["absolute"] == pytest.approx(float(gap.max())) and moved["relative"] == pytest.approx(
        float((gap / larger).max())
    )
    bits = [tensors["moved"].contiguous().view(torch.int32).long() for tensors in (first, second)]
    if (bits[0].sign() == bits[1].sign()).all():
        assert moved["ulps"] == int((bits[0] - bits[1]).abs().max())
    half = found["half"]["distance"]
    assert half["absolute"] == pytest.approx(float((first["half"].double() - second["half"].double()).abs().max()))
    assert half["ulps"] is None


def test_formats_may_differ(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.randn(3, 4), "i": torch.arange(4)}
    safetensors.save_file(tensors, tmp_path / "b.safetensors")
    a = saved(tmp_path / "a.pt", tensors)
    assert diff(a, tmp_path / "b.safetensors") == (0, {})
    code, out, err = helpers.offline("diff", a, tmp_path / "b.safetensors")
    assert (code, out, err) == (0, "2 tensors are in both, 0 differences\n", "")


def test_checkpoints_need_no_torch(tmp_path):
    a = saved(tmp_path / "a.pt", {"w": torch.ones(2)})
    old = tmp_path / "old.pt"
    torch.save({"w": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    assert without_python.is_answered(["diff", str(a), str(a)])
    assert without_python.is_answered(["diff", str(a), str(old)])
    assert helpers.offline("diff", a, old)[0] == 4
    (tmp_path / "capsule.zip").write_bytes(b"PK\x03\x04" + bytes(26) + b"capsule.json")
    assert not without_python.is_answered(["diff", str(a), str(tmp_path / "capsule.zip")])
