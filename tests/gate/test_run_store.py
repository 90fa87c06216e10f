"""store.sqlite of a run: what the gate has read of each step, while the program runs and after it was killed."""

import contextlib
import math
import pathlib
import random
import signal
import sqlite3
import subprocess
import time
import types

import pytest

from finitude.session import run_store
from helpers import environment, run, warm_python, write_script

TRAINS = """
import torch, time
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.25)
for i in range(STEPS):
    loss = (model(torch.randn(16, 4)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    NORM
    opt.step()
    print(i, loss.item(), time.time(), flush=True)
"""


def program(steps, norm="pass"):
    return TRAINS.replace("STEPS", str(steps)).replace("NORM", norm)


@contextlib.contextmanager
def store_in(folder):
    (path,) = pathlib.Path(folder).glob("finitude-runs/*/store.sqlite")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        yield db


def losses_of(out):
    """Those that the program printed, by step."""
    found = {}
    for line in out.splitlines(keepends=True):
        if line.endswith("\n") and len(words := line.split()) == 3:
            found[int(words[0])] = float(words[1])
    return found


def points(db, quantity, parameter=None):
    query = (
        "SELECT step, last_step, first, last, min, max FROM point JOIN series ON series.id = point.series "
        "WHERE quantity = ? AND parameter IS ? ORDER BY step"
    )
    return db.execute(query, (quantity, parameter)).fetchall()


def check_losses(db, losses):
    """Returns the last step. Every point is of steps that were printed, says what they say, and follows the one before."""
    end = -1
    for step, last_step, *values in points(db, "loss"):
        assert step == end + 1 and last_step >= step
        of_it = [losses[i] for i in range(step, last_step + 1)]
        assert values == pytest.approx([of_it[0], of_it[-1], min(of_it), max(of_it)], rel=1e-6)
        end = last_step
    return end


def test_what_the_program_printed_is_stored(tmp_path):
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    result = run(tmp_path, program(40, clip), "--warnings", "off")
    assert result.code == 0, result.text()
    with store_in(tmp_path) as db:
        assert check_losses(db, losses_of(result.out)) == 39
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        info = dict(db.execute("SELECT key, value FROM info"))
        assert {"rank", "world", "pid", "host", "started", "version", "torch"} == set(info)
        assert (info["rank"], info["world"]) == ("0", "1")
        assert points(db, "learning_rate")[-1][2:] == (0.25,) * 4
        (norm, *_), (largest, *_) = points(db, "gradient_norm"), points(db, "gradient_absmax")
        assert 0 < largest[5] <= norm[5] and math.isfinite(norm[5])
        names = {name for (name,) in db.execute("SELECT DISTINCT parameter FROM series WHERE parameter IS NOT NULL")}
        assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}
        assert points(db, "gradient_absmax", "0.weight")[-1][1] == 32  # clipped: read in every 16th step
        assert db.execute("SELECT DISTINCT optimizer FROM series").fetchall() == [("SGD",)]


NORMS = """
import torch
torch.manual_seed(0)
model = torch.nn.ModuleList([
    torch.nn.Linear(4, 300).bfloat16(), torch.nn.Linear(7, 3).half(), torch.nn.Linear(5, 2).double(),
    torch.nn.Linear(3, 2, dtype=torch.complex64), torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)])
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(3):
    opt.zero_grad()
    sum(((i + 1) * p * torch.randn_like(p)).sum().abs().float() for p in model.parameters()).backward()
    opt.step()
    for name, p in model.named_parameters():
        print(i, name, torch.view_as_real(p.grad.resolve_conj()).double().norm().item() if p.is_complex() else p.grad.double().norm().item())
"""


def test_norms_are_those_of_torch(tmp_path):
    result = run(tmp_path, NORMS)
    assert result.code == 0, result.text()
    norms = {}
    for step, name, norm in (line.split() for line in result.out.splitlines() if len(line.split()) == 3):
        norms.setdefault(name, []).append(float(norm))
    assert len(norms) == 10
    with store_in(tmp_path) as db:
        for name, of_it in norms.items():
            (point,) = points(db, "gradient_norm", name)
            assert point[:2] == (0, 2) and point[2:] == pytest.approx([of_it[0], of_it[-1], min(of_it), max(of_it)])
        steps = points(db, "gradient_norm")
        assert steps[0][2] == pytest.approx(math.hypot(*(of_it[0] for of_it in norms.values())))
        dtypes = dict(db.execute("SELECT parameter, dtype FROM series WHERE parameter IS NOT NULL"))
        assert dtypes["0.weight"] == "bfloat16" and dtypes["3.bias"] == "complex64" and len(dtypes) == 10
        assert db.execute("SELECT count(*) FROM series WHERE parameter IS NULL AND dtype IS NOT NULL").fetchone() == (
            0,
        )


CLIPPED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(20):
    opt.zero_grad()
    model(torch.randn(16, 4)).pow(2).mean().backward()
    if i % 16 == 0:
        for name, p in model.named_parameters():
            print(name, p.grad.abs().max().item(), p.grad.double().norm().item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    opt.step()
"""


def test_clipped_gradients_are_stored_as_they_were_before(tmp_path):
    result = run(tmp_path, CLIPPED)
    assert result.code == 0 and "all finite" in result.err, result.text()
    with store_in(tmp_path) as db:
        read = [line.split() for line in result.out.splitlines() if len(line.split()) == 3]
        assert len(read) == 8
        for name, absmax, norm in read[:4]:
            for quantity, value in (("gradient_absmax", absmax), ("gradient_norm", norm)):
                stored = points(db, quantity, name)
                last = next(float(r[1 if quantity == "gradient_absmax" else 2]) for r in read[4:] if r[0] == name)
                assert (stored[0][0], stored[-1][1]) == (0, 16), (name, quantity, stored)
                assert stored[0][2] == pytest.approx(float(value)) and stored[-1][3] == pytest.approx(last), stored
        whole = points(db, "gradient_absmax")
        largest = [max(float(r[1]) for r in part) for part in (read[:4], read[4:])]
        last = next(point for point in whole if point[0] <= 16 <= point[1])
        assert [whole[0][2], last[2]] == pytest.approx(largest)
        assert points(db, "gradient_norm")[-1][1] == 19


PARTS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.0625}]
opt = torch.optim.AdamW(groups, lr=0.03125)
for i in range(150):
    opt.zero_grad()
    for part in range(3):
        x = torch.randn(16, 4)
        x[:, 1] = 0
        loss = (model(x).pow(2).mean() + [2.0, 0.5, 1.0][part]) / 3
        loss.backward()
        print("loss", i, loss.item())
    before = [p.detach().clone() for p in model.parameters()]
    opt.step()
    for (name, p), was in zip(model.named_parameters(), before):
        print(name, i, ((p - was).norm() / was.norm()).item())
    print("state", i, max(v.abs().max().item() for s in opt.state.values() for k, v in s.items() if k != "step"))
"""


def test_micro_batches_groups_and_updates_are_stored(tmp_path):
    result = run(tmp_path, PARTS)
    assert result.code == 0, result.text()
    printed = {}
    for name, step, value in (line.split() for line in result.out.splitlines() if len(line.split()) == 3):
        printed.setdefault(name, {}).setdefault(int(step), []).append(float(value))
    with store_in(tmp_path) as db:
        for step, last_step, *values in points(db, "loss"):
            every = [value for i in range(step, last_step + 1) for value in printed["loss"][i]]
            assert values == pytest.approx([every[0], every[-1], min(every), max(every)], rel=1e-5)
        assert points(db, "learning_rate")[-1][3] == 0.03125 and points(db, "learning_rate_2")[-1][3] == 0.0625
        assert points(db, "learning_rate_3") == []
        # Of a parameter of 32 elements and less, all are looked at; one step in each pass over all.
        for name in ("0.weight", "0.bias", "2.weight"):
            ratios = [values[0] for values in printed[name].values()]
            for value in [value for point in points(db, "update_ratio", name) for value in point[2:]]:
                assert min(abs(value / one - 1) for one in ratios) < 1e-4, (name, value)
        largest = max(values[0] for values in printed["state"].values())
        assert all(0 < points(db, "state_absmax", name)[0][5] <= largest * 1.0001 for name in ("0.weight", "2.bias"))
        assert points(db, "gradient_zeros", "0.weight")[0][2:] == (0.25,) * 4
        assert points(db, "gradient_zeros", "2.weight")[0][2:] == (0.0,) * 4
        assert points(db, "gradient_subnormals", "0.weight")[0][2:] == (0.0,) * 4


def test_nothing_but_the_store_stays(tmp_path):
    run(tmp_path, program(3))
    left = [path.name for path in next(tmp_path.glob("finitude-runs/*")).iterdir() if "store" in path.name]
    assert left == ["store.sqlite"]


FORKS = (
    program(3)
    + """
import os
if os.fork() == 0:
    for _ in range(5):
        model(torch.randn(16, 4)).sum().backward()
        opt.step()
    os._exit(0)
os.wait()
loss = model(torch.randn(16, 4)).sum()
opt.zero_grad()
loss.backward()
opt.step()
"""
)


def test_a_forked_child_stores_nothing(tmp_path):
    result = run(tmp_path, FORKS)
    assert result.code == 0, result.text()
    with store_in(tmp_path) as db:
        assert points(db, "loss")[-1][1] == 3


def test_a_store_that_cannot_be_is_said(tmp_path):
    said = []
    report = types.SimpleNamespace(
        config=types.SimpleNamespace(redact=0),
        started=types.SimpleNamespace(isoformat=lambda timespec: "2026-01-01T00:00:00+00:00"),
        complain=said.append,
    )
    store = run_store.RunStore(report, None, lambda call, *given: call(*given))
    store.begin(str(tmp_path / "nowhere"))
    store.end()
    assert said == ["cannot write store.sqlite: unable to open database file"]


def killed(folder, seconds):
    """What a program printed that is killed so long after its first step, and when it printed last."""
    write_script(folder, program(10**9))
    child = subprocess.Popen(
        [*warm_python(), "-m", "finitude", "run", "train.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({}),
    )
    lines = [child.stdout.readline()]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        lines.append(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    lines.append(child.stdout.read())
    child.wait()
    return "".join(lines)


def check_killed(folder, seconds):
    losses = losses_of(out := killed(folder, seconds))
    times = [float(line.split()[2]) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    losses.setdefault(len(losses), math.nan)  # a step whose line was never printed
    with store_in(folder) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        end = max((row[1] for row in points(db, "loss")), default=-1)
        check_losses_up_to(db, losses)
    assert times[-1] - times[max(0, min(end, len(times) - 1))] < 1.0, (end, len(times))


def check_losses_up_to(db, losses):
    """As check_losses, but the newest point may hold a step that was not printed."""
    for step, last_step, first, last, low, high in points(db, "loss"):
        of_it = [losses[i] for i in range(step, last_step + 1)]
        assert first == pytest.approx(of_it[0], rel=1e-6, nan_ok=True)
        if not math.isnan(of_it[-1]):
            assert (last, low, high) == pytest.approx((of_it[-1], min(of_it), max(of_it)), rel=1e-6)


@pytest.mark.slow
def test_a_killed_program_lacks_a_second_at_most(tmp_path):
    for number, seconds in enumerate((0.1, 0.8, 1.9)):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_killed(folder, seconds)


@pytest.mark.thorough
def test_two_hundred_kills_leave_no_wrong_row(tmp_path):
    draw = random.Random(0)
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_killed(folder, draw.uniform(0, 2.5))
