"""torchrun on two nodes: each is started by a `finitude run` of its own. Here both are on this machine."""

import concurrent.futures
import pathlib
import socket

import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT
from process_support import cold, lost_its_port

pytestmark = pytest.mark.slow
PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed" / "fsdp2.py"


def on_two_nodes(folder, *words):
    """The outcome of each node, which has a folder of its own, as two machines without a shared file system have."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = words or (str(PROGRAM), "--nan")
    start = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "7"]
    start += ["--rdzv-endpoint", f"127.0.0.1:{port}"]

    def node(number):
        own = folder / f"node-{number}-{port}"
        own.mkdir()
        return cold(own, *start, *words, limit=3 * LIMIT)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(node, range(2)))


def test_both_nodes_run_the_step_again_together(tmp_path):
    both = on_two_nodes(tmp_path)
    if any(lost_its_port(got.err) for got in both):
        both = on_two_nodes(tmp_path)
    text = "\n".join(got.text() for got in both)
    alarms = {a["rank"]: a for got in both for a in got.alarms}
    assert sorted(alarms) == [0, 1] and all(len(got.alarms) == 1 for got in both), text
    made, received = alarms[1], alarms[0]
    assert (made["step"], made["rerun"], made["rerun_by"]) == (6, "persistent", "rewind"), text
    assert made["births"][0]["op"] == "aten::log" and made["cause"]["class"] == "log-of-zero", text
    assert received["births"][0]["phase"] == "communication", text
    place = f"fsdp2.py:{made['births'][0]['line']}"
    assert received["cause"]["class"] == "other-rank", text
    assert received["cause"]["text"] == f"the value came from rank 1, where aten::log made it at {place}", text
