"""Loggers whose points go through a thread or a process of their own, as they come from pip: a step's point is there
once."""

import glob
import pathlib
import struct

import pytest

import helpers

pytestmark = pytest.mark.frameworks

TRAINING = """
import torch
from torch import nn

OPEN
torch.manual_seed(0)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    opt.zero_grad()
    loss = (model(torch.ones(2, 3)) / (0.0 if i == 4 else 1.0)).sum()
    loss.backward()
    opt.step()
    LOG
CLOSE
"""


def watched(folder, opened, log, close, env=None):
    text = TRAINING.replace("OPEN", opened).replace("LOG", log).replace("CLOSE", close)
    # In a process of its own: the logger starts threads and processes, which the forked runs of other tests share
    # nothing of.
    got = helpers.run(folder, text, "--on-alarm", "skip", env=env, cold=True)
    assert (got.code, got.the_alarm()["rerun_by"]) == (0, "rewind"), got.text()


def test_tensorboard_has_the_point_of_a_step_once(tmp_path):
    watched(
        tmp_path,
        "from torch.utils.tensorboard import SummaryWriter\nw = SummaryWriter('log')",
        "w.add_scalar('loss', float(i), i)",
        "w.close()",
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "log"))
    found.Reload()
    assert [e.step for e in found.Scalars("loss")] == list(range(8))


def test_wandb_has_the_point_of_a_step_once(tmp_path):
    watched(
        tmp_path,
        "import wandb\nrun = wandb.init(project='test')",
        "wandb.log({'i': i})",
        "run.finish()",
        env={"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)},
    )
    from wandb.proto import wandb_internal_pb2

    (path,) = glob.glob(str(tmp_path / "wandb" / "offline-run-*" / "run-*.wandb"))
    points = []
    for data in records(pathlib.Path(path).read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            points += [item.value_json for item in record.history.item if (item.key or item.nested_key[0]) == "i"]
    assert points == [str(i) for i in range(8)]


def records(stored):
    """The records of a file of wandb's: blocks of 32 KB as LevelDB's log has them, behind a header of seven bytes."""
    at, block, parts = 7, 32768, b""
    while at + 7 <= len(stored):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", stored, at)
        parts += stored[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
