"""torchrun on two nodes: each is started by a `finitude run` of its own. Both are on this machine, as two hosts with a
network of their own where this process may make those."""

import concurrent.futures
import json
import pathlib
import shlex
import socket
import sys

import hosts
import pytest
import torch  # noqa: F401  its libraries

from helpers import LIMIT, write_script
from process_support import cold, lost_its_port

pytestmark = pytest.mark.slow
PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed" / "fsdp2.py"

# Rank 0 has read a line of a pipe, which cannot be given back: the step cannot be run again in place.
ONCE = """
import os, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
if rank == 0:
    source, into = os.pipe()
    os.write(into, b"1\\n" * 8)
    lines = os.fdopen(source)
model = DistributedDataParallel(nn.Linear(4, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
for step in range(6):
    if rank == 0: next(lines)
    x = torch.rand(8, 4) + 0.1
    if rank == 1 and step == 3: x[2, 1] = 0.0
    opt.zero_grad()
    model(torch.log(x)).square().mean().backward()
    opt.step()
dist.destroy_process_group()
time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found, why = hosts.start(tmp_path_factory.mktemp("hosts"))
    yield found, why
    if found is not None:
        found.close()


@pytest.fixture
def two_hosts(made):
    if made[0] is None:
        pytest.skip(made[1])
    return made[0]


def launcher(endpoint):
    words = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "7"]
    return [*words, "--rdzv-endpoint", endpoint]


def on_both(folders, words, command=lambda number: ()):
    """The outcome of `finitude run *words` on each node."""

    def node(number):
        return cold(folders[number], *words, limit=3 * LIMIT, python=(*command(number), sys.executable))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(node, range(2)))


def folders_in(folder):
    """Two, as machines without a shared file system have them."""
    found = [folder / name for name in hosts.NAMES]
    for one in found:
        one.mkdir(parents=True)
    return found


def text_of(both):
    return "\n".join(got.text() for got in both)


def check_story(reports, step, way, action="stopped", host=None):
    """Both have run the step again or recorded it; the report of node 0 has what rank 1 found too."""
    alarms = [report["alarms"] for report in reports]
    assert [[a["rank"] for a in some] for some in alarms] == [[1, 0], [1]], alarms
    (made, received), (own,) = alarms
    for one in made, received, own:
        assert (one["step"], one["rerun_by"]) == (step, way) and action in one["action"], one
    assert own["births"][0]["op"] == "aten::log" and own["cause"]["class"] == "log-of-zero", own
    assert received["births"][0]["phase"] == "communication" and received["cause"]["class"] == "other-rank", received
    place = f"{own['births'][0]['file'].rpartition('/')[2]}:{own['births'][0]['line']}"
    assert received["cause"]["text"] == f"the value came from rank 1, where aten::log made it at {place}", received
    for key in "births", "cause", "fix", "sink", "text", "gradients":
        assert made[key] == own[key], (key, made, own)
    assert (made["host"], made["capsule"]) == (host or socket.gethostname(), None), made
    assert "host" not in own and "host" not in received and reports[0]["watched"]["ranks"] == 2, alarms


def test_both_nodes_run_the_step_again_together(tmp_path, made):
    """Over the loopback of one host, where there cannot be two."""
    if made[0] is not None:
        pytest.skip("two hosts show the same")
    for attempt in "1", "2":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        both = on_both(folders_in(tmp_path / attempt), [*launcher(f"127.0.0.1:{port}"), str(PROGRAM), "--nan"])
        if not any(lost_its_port(got.err) for got in both):
            break
    check_story(sorted((got.report for got in both), key=lambda report: -len(report["alarms"])), 6, "rewind")


def test_two_hosts_that_share_a_folder_skip_together(tmp_path, two_hosts):
    """Each has a run of its own there."""
    both = on_both(
        [tmp_path] * 2, ["--on-alarm", "skip", *launcher("node-a:29400"), PROGRAM, "--nan"], two_hosts.command
    )
    assert [got.code for got in both] == [0, 0], text_of(both)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("finitude-runs/*/report.json")]
    check_story(sorted(found, key=lambda report: -len(report["alarms"])), 6, "rewind", "skipped", "node-b")
    manifests = {
        tuple(one["first"] for one in json.loads(path.read_text())["ranks"])
        for path in tmp_path.glob("finitude-runs/*/step-000006.json")
    }
    assert manifests == {(False, True)}, manifests  # both name rank 1
    (line,) = (line for line in both[0].err.splitlines() if "2 alarms" in line)
    assert "10 steps on 2 ranks watched" in line, line


def test_the_printed_command_explains_what_no_rewind_does(tmp_path, two_hosts):
    """It is run word by word, on each host."""
    folders = folders_in(tmp_path)
    for folder in folders:
        write_script(folder, ONCE)
    words = [*launcher("node-a:29401"), "train.py"]
    both = on_both(folders, words, two_hosts.command)
    text = text_of(both)
    assert [[(a["rank"], a["rerun_by"]) for a in got.alarms] for got in both] == [[(0, "none")], [(1, "none")]], text
    assert "all ranks are run again" not in text, text
    printed = [line.partition(". On each machine: ")[2] for got in both for line in got.err.splitlines()]
    first, second = (shlex.split(one) for one in printed if one)
    assert first == second == ["finitude", "run", "--report", "report.json", "--level", "trace", *words], printed
    again = on_both(folders, first[2:], two_hosts.command)
    check_story([got.report for got in again], 3, "trace", host="node-b")
