"""`torchrun -m finitude replay RUN`: the ranks of a step replay it at once, and its collective operations are issued
again between them. What each gave is compared with what was recorded, and the step continues with what it gave."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from finitude.base import checked_json
from finitude.capsules import step_manifest
from finitude.cli import offline
from helpers import LIMIT, environment
from process_support import TORCHRUN, launched, lost_its_port, warm_launcher
from rank_programs import ranks
from sharded_programs import BEGIN, END, FSDP2, TENSOR_PARALLEL

pytestmark = pytest.mark.slow

# In step 3 rank 1 makes the bad value, in step 5 rank 0; in step 6 there is one operation more.
PLAIN = """
import time, torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
torch.manual_seed(0)
model = nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
def exchanged(h):
    x = h.detach() + rank
    parts = [torch.zeros(4, 4) for _ in range(2)]
    dist.all_gather(parts, x)
    whole = torch.zeros(8, 4)
    dist.all_gather_into_tensor(whole, x)
    part = torch.zeros(2, 4)
    dist.reduce_scatter_tensor(part, x)
    turned = torch.zeros(4, 4)
    dist.all_to_all_single(turned, x)
    most = x.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    mean = x.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    first = x.clone()
    dist.broadcast(first, 0)
    given = torch.zeros(4, 4)
    dist.scatter(given, [x, x + 1] if rank == 0 else None, 0)
    dist.gather(x, parts if rank == 0 else None, 0)
    at_root = x.clone()
    dist.reduce(at_root, 1)
    passed = torch.zeros(4, 4)
    sent = dist.isend(x * 2, 1 - rank)
    dist.recv(passed, 1 - rank)
    sent.wait()
    summed = fc.all_reduce(x, "sum", pair)
    seen = [*parts, whole, part, turned, most, mean, first, given, passed, summed]
    if rank == 1: seen.append(at_root)
    return sum(one.mean() for one in seen)
for step in range(8):
    h = model(torch.randn(4, 4))
    if (step, rank) in ((3, 1), (5, 0), (6, 1)): h = h / torch.zeros(4, 1)
    loss = h.pow(2).mean() * (1 + 0.01 * exchanged(model(torch.randn(4, 4))))
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=pair)  # the gradients
        p.grad /= 2
    if step == 6: dist.all_reduce(model.bias.grad, dist.ReduceOp.MIN)
    opt.step()
dist.destroy_process_group()
time.sleep(0.3)  # else gloo may abort the interpreter (pytorch#179291)
"""

SHARDED = (
    BEGIN.replace("OUT", "3")
    + """
for step in range(5):
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    opt.zero_grad()
    out = model(x)
    if step == 3 and BAD: out = out / torch.relu(x.sum(1, keepdim=True))
    nn.functional.cross_entropy(out, y).backward()
    opt.step()
"""
    + END
)
DDP = ranks("loss = nn.functional.cross_entropy(logits, y)\nif rank == 1 and step == 3: loss = loss * NAN")
PROGRAMS = {
    "ddp": DDP,
    "fsdp2": SHARDED.replace("MAKE", FSDP2).replace("SEED", "100 + rank").replace("BAD", "rank == 1"),
    "tensor parallel": SHARDED.replace("MAKE", TENSOR_PARALLEL).replace("SEED", "7").replace("BAD", "True"),
    "plain": PLAIN,
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """The folder of the run of a program, which is started once."""
    runs = {}

    def of(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp("run")
            got = launched(folder, PROGRAMS[name], "--on-alarm", "skip")
            assert got.code == 0 and got.alarms, got.text()
            (runs[name],) = (folder / "finitude-runs").iterdir()
        return runs[name]

    return of


def together(run, *words, by_torchrun=False):
    """(exit code of the launcher, lines of standard output, standard error)"""
    folder = run.parent if run.is_file() else run
    start, env = (*TORCHRUN, "2"), None
    if not by_torchrun:
        start, env = warm_launcher(folder), {"TORCHELASTIC_RUN_ID": "none"}
    for _ in range(2):  # once more where it has lost its port
        done = subprocess.run(
            [*start, "-m", "finitude", "replay", str(run), *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=3 * LIMIT,
            env=environment(env),
            stdin=subprocess.DEVNULL,
        )
        if not lost_its_port(done.stderr):
            break
    return done.returncode, done.stdout.splitlines(), done.stderr


def mixed(run, **steps):
    """A manifest with the capsules of different steps: rank_0=3, rank_1=5."""
    document = step_manifest.read(run / "step-000003.json")
    for rank, step in enumerate(steps.values()):
        document["ranks"][rank]["capsule"] = f"rank-{rank}/step-{step:06d}"
    path = run / f"step-{900 + sum(s * 10**i for i, s in enumerate(steps.values())):06d}.json"
    path.write_bytes(checked_json.text_of(document))
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_step_is_computed_again_as_a_whole(run_of, name):
    words = ["--json"] if name == "ddp" else []
    code, out, err = together(run_of(name) / "step-000003.json", *words, by_torchrun=name == "ddp")
    assert code == 0, "\n".join(out) + err
    if words:
        document = json.loads("\n".join(out))
        assert document["outcome"] == "reproduced", document
        out = [f"rank {one['rank']}: {line}" for one in document["ranks"] for line in one["text"].splitlines()]
    same = [line.split(": ")[:2] for line in out if ": identical" in line]
    assert same == [["rank 0", "identical"], ["rank 1", "identical"]], out
    issued = [re.search(r"(\d+) of (\d+) collective operations were issued again: (\d+) gave", line) for line in out]
    counts = [tuple(map(int, found.groups())) for found in issued if found]
    assert len(counts) == 2, out
    for again, of, equal in counts:
        assert again == of and 0 < equal <= of, out
    assert not any("other bits" in line or "recorded result" in line for line in out), out


def test_value_of_another_rank_comes_by_the_issued_operation(run_of):
    """Rank 0 of the step whose bad value rank 1 made, with a step of rank 1 that was finite there: what rank 0 recorded
    as NaN is finite. Played alone it is NaN, as recorded."""
    run = run_of("plain")
    path = mixed(run, rank_0=3, rank_1=5)
    code, out, err = together(path)
    assert code == 1, "\n".join(out) + err
    first = [line for line in out if line.startswith("rank 0: ")]
    assert any("not reproduced: transient" in line for line in first), out
    line = PLAIN.strip().splitlines().index("    dist.all_gather(parts, x)") + 1
    assert any(f"other bits, first c10d::allgather_ at train.py:{line}" in text for text in first), out
    alone = subprocess.run(
        [sys.executable, "-m", "finitude", "replay", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(None),
    )
    assert alone.returncode == 0 and alone.stdout.count(": identical") == 2, alone.stdout + alone.stderr


def test_rank_that_does_not_come_ends_the_replay(run_of):
    """Rank 1 has one operation more than rank 0."""
    path = mixed(run_of("plain"), rank_0=3, rank_1=6)
    code, out, err = together(path, "--timeout", "4")
    assert code != 0, "\n".join(out) + err
    waited = [
        line for line in err.splitlines() if "rank 1: " in line and "were waited for in c10d::allreduce_ at" in line
    ]
    assert waited and "at most 4 s" in waited[0], "\n".join(out) + err


@pytest.mark.parametrize(
    "words, count, wanted",
    [
        ((), 1, "the step is of 2 ranks, and 1 replay it: torchrun --standalone --nproc-per-node 2 -m finitude replay"),
        (("--dtype", "float64"), 2, "--dtype is not possible where all ranks replay together"),
        (("--with", "train.py"), 2, "--with is not possible where all ranks replay together"),
        (("--timeout", "soon"), 2, "--timeout takes a number of seconds, not soon"),
    ],
)
def test_what_is_not_possible_is_refused_in_one_line(run_of, monkeypatch, capsys, words, count, wanted):
    as_rank(monkeypatch, 0, count)
    assert offline.replay([*words, str(run_of("ddp"))]) == 2
    assert wanted in refused(capsys)
    as_rank(monkeypatch, 1, count)
    assert (offline.replay([*words, str(run_of("ddp"))]), capsys.readouterr().err) == (0, "")  # rank 0 says it


def as_rank(monkeypatch, rank, count):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "WORLD_SIZE": count}.items():
        monkeypatch.setenv(name, str(value))


def refused(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_capsule_of_one_process_is_refused(run_of, monkeypatch, capsys):
    as_rank(monkeypatch, 0, 2)
    capsule = run_of("ddp") / "rank-0" / "step-000003"
    assert offline.replay([str(capsule)]) == 2
    assert refused(capsys).startswith(f"finitude: {capsule} is of one process: name the folder of a run")
    assert offline.replay([]) == 2
    assert refused(capsys).startswith("finitude: which run?")


@pytest.mark.parametrize("name", ["run", "my run"])
def test_wrong_number_of_ranks_is_refused_with_what_to_type(run_of, tmp_path, monkeypatch, capsys, name):
    path = tmp_path / name
    path.symlink_to(run_of("ddp"))
    as_rank(monkeypatch, 0, 3)
    assert offline.replay([str(path)]) == 2
    typed = f"-m finitude replay {shlex.quote(str(path))}"
    assert refused(capsys).endswith(f"torchrun --standalone --nproc-per-node 2 {typed}")


def test_rank_without_capsule_is_named(run_of, monkeypatch, capsys):
    run = run_of("ddp")
    document = step_manifest.read(run / "step-000003.json")
    document["ranks"][1].update(capsule=None, why="its step was not run again")
    path = run / "step-000777.json"
    path.write_bytes(checked_json.text_of(document))
    as_rank(monkeypatch, 0, 2)
    assert offline.replay([str(path)]) == 4
    said = refused(capsys)
    assert "rank 1 has no capsule (its step was not run again)" in said
    assert said.endswith(f"finitude replay {path} plays each by itself")
