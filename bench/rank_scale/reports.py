"""The report of a run of many ranks, merged from what two real ranks left: one made the bad value, the others got it."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from finitude.report import merge as of_ranks

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/distributed/ddp.py"


class Cost(NamedTuple):
    seconds: float  # of reading and merging
    read: int  # bytes of all reports
    written: int  # bytes of the merged one


@contextlib.contextmanager
def sample():
    """The folders of two ranks of a real run."""
    with tempfile.TemporaryDirectory() as there:
        command = [sys.executable, "-m", "finitude", "run", "torchrun", "--nproc-per-node", "2", EXAMPLE, "--nan"]
        subprocess.run(command, cwd=there, capture_output=True, timeout=300)
        (run,) = pathlib.Path(there, "finitude-runs").iterdir()
        yield [run / "rank-0", run / "rank-1"]


def merge(rank_folders, size):
    reports = [json.loads((folder / "report.json").read_text()) for folder in rank_folders]
    own = json.loads((rank_folders[0].parent / "report.json").read_text())
    own.update(outcome="clean", reason="", alarms=[], advisories=[], watched=of_ranks.nothing_watched())
    made = next(i for i, report in enumerate(reports) if report["alarms"][0]["cause"]["class"] != "other-rank")
    read = 0
    with tempfile.TemporaryDirectory() as run:
        for rank in range(size):
            report = reports[made] if rank == size // 2 else reports[1 - made]
            report["watched"]["ranks"] = size
            for alarm in report["alarms"]:
                alarm["rank"] = rank
            folder = pathlib.Path(run, f"rank-{rank}")
            folder.mkdir()
            text = json.dumps(report)
            (folder / "report.json").write_text(text)
            read += len(text)
        began = time.monotonic()
        merged = of_ranks.merged(own, of_ranks.members(run))
        took = time.monotonic() - began
    first = merged["alarms"][0]
    assert merged["watched"]["ranks"] == size and first["rank"] == size // 2 and first["births"], "the birth is lost"
    return Cost(took, read, len(json.dumps(merged)))
