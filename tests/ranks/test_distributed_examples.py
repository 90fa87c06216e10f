"""The programs of examples/distributed: what each rank is said to have seen."""

import pathlib

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT
from process_support import cold, launcher

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
def test_each_names_line_and_rank(tmp_path, name):
    line, phases = PROGRAMS[name]
    got = cold(tmp_path, *launcher(tmp_path, 2), str(EXAMPLES / f"{name}.py"), "--nan", limit=3 * LIMIT)
    births = {a["rank"]: a["births"][0] for a in got.alarms if a["step"] == 6}
    assert {rank: birth["phase"] for rank, birth in births.items()} == phases, got.text()
    assert all(line in b["source"] for b in births.values() if b["phase"] == "forward"), births
    assert got.code != 0


def test_a_healthy_one_is_silent(tmp_path):
    got = cold(tmp_path, *launcher(tmp_path, 2), str(EXAMPLES / "fsdp2.py"), limit=3 * LIMIT)
    got.assert_silent()
    assert got.code == 0 and "loss" in got.out
