"""A bad step is run a second time, in place where it can be, and nothing but the report shows that it was.

Loops over DataLoaders and loops of their own, bad at their first step (restart) and later (rewind).
"""

import textwrap

import pytest

import helpers
from plain_runs import plain_runs

# The batch of step BAD holds a row of zeros, which the model divides by its length.
BIRTH = "return self.last(x / x.norm(dim=1, keepdim=True))"

HEAD = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self, bad):
        self.rows = torch.randn(48, 6)
        if bad is not None:
            self.rows[bad * 4 + 2] = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], self.rows[i].sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def forward(self, x):
        return self.last(x / x.norm(dim=1, keepdim=True))


def loss_of(x, y):
    return (model(x).squeeze(1) - y).pow(2).mean()


def apply(loss):
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    optimizer.step()


data = Rows(BAD)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
"""

LOADERS = {
    "in_process": "for x, y in DataLoader(data, 4):\n    apply(loss_of(x, y))\n    step += 1\n",
    "two_workers": "for x, y in DataLoader(data, 4, num_workers=2):\n    apply(loss_of(x, y))\n    step += 1\n",
    "persistent_workers": """
        loader = DataLoader(data, 4, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            for x, y in loader:
                apply(loss_of(x, y))
                step += 1
        """,
    "shuffled_epochs": """
        loader = DataLoader(data, 4, shuffle=True)
        for epoch in range(3):
            for x, y in loader:
                apply(loss_of(x, y))
                step += 1
        """,
    "enumerated": "for step, (x, y) in enumerate(DataLoader(data, 4)):\n    apply(loss_of(x, y))\n",
    "progress_bar": """
        from tqdm import tqdm
        for x, y in tqdm(DataLoader(data, 4)):
            apply(loss_of(x, y))
            step += 1
        """,
    "zipped": """
        for (x, y), (other, _) in zip(DataLoader(data, 4), DataLoader(Rows(None), 4)):
            apply(loss_of(x, y) + loss_of(other, y))
            step += 1
        """,
    "accumulating_two": """
        optimizer.zero_grad()
        for i, (x, y) in enumerate(DataLoader(data, 2)):
            loss = loss_of(x, y) / 2
            loss.backward()
            if i % 2 == 1:
                print(f"step {step} loss {loss.item():.6f}", flush=True)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
        """,
    "in_a_function": """
        def train(epochs):
            global step
            loader = DataLoader(data, 4)
            for epoch in range(epochs):
                losses = []
                for x, y in loader:
                    loss = loss_of(x, y)
                    losses.append(loss.item())
                    apply(loss)
                    step += 1
                print("mean", sum(losses) / len(losses))

        train(2)
        """,
}

BARE = {
    "range": """
        for step in range(12):
            x, y = data.rows[step * 4:step * 4 + 4], data.rows[step * 4:step * 4 + 4].sum(1)
            apply(loss_of(x, y))
        """,
    "while_true_prefetched": """
        def get_batch(at):
            rows = data.rows[at % 12 * 4:at % 12 * 4 + 4]
            return rows + 0.0 * torch.rand(1), rows.sum(1)

        x, y = get_batch(0)
        while True:
            loss = loss_of(x, y)
            x, y = get_batch(step + 1)
            apply(loss)
            step += 1
            if step >= 12:
                break
        """,
    "random_batches": """
        import random
        import numpy
        random.seed(2)
        numpy.random.seed(2)
        for step in range(12):
            x = torch.randn(4, 6) * random.random() * (1 + numpy.random.rand())
            if step == BAD:
                x[1] = 0
            apply(loss_of(x, x.sum(1)))
        """,
}

LOOPS = {**LOADERS, **BARE}
# A restart is a process of its own and the same for all loops: a few of each sort are enough at step 0.
CASES = [(name, 5) for name in LOOPS] + [
    (name, 0) for name in ("two_workers", "shuffled_epochs", "range", "while_true_prefetched")
]


def script_of(name, bad, head=HEAD):
    # Where order is shuffled the row is met at some step of the first epoch; there the plain run shows which.
    return f"BAD = {bad}\n" + head.lstrip() + "\n" + textwrap.dedent(LOOPS[name])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What each program prints unwatched."""
    folder = tmp_path_factory.mktemp("plain")
    jobs = {}
    for name, bad in CASES:
        jobs[f"{name}-{bad}"] = [helpers.write_script(folder, script_of(name, bad), f"{name}-{bad}.py")]
    return plain_runs(folder, jobs)


def up_to_the_first_nan(out):
    lines = out.splitlines(keepends=True)
    bad = next(i for i, line in enumerate(lines) if "nan" in line)
    return "".join(lines[: bad + 1]), int(lines[bad].split()[1])


@pytest.mark.parametrize("name, bad", CASES)
def test_rerun_finds_the_birth_and_prints_nothing(tmp_path, plain, name, bad):
    code, out = plain[f"{name}-{bad}"]
    assert code == 0, out
    printed, step = up_to_the_first_nan(out)
    if name == "accumulating_two":  # only the second of two losses is printed, so one more step may pass before a NaN
        printed, step = "".join(out.splitlines(keepends=True)[: bad + 1]), bad
    assert step == bad or name == "shuffled_epochs"

    run = helpers.run(tmp_path, script_of(name, bad), name=f"{name}.py")
    alarm = run.the_alarm()
    assert alarm["step"] == step
    assert (alarm["rerun"], alarm["rerun_verified"]) == ("persistent", True), alarm["rerun_text"]
    assert alarm["rerun_by"] == ("rewind" if step else "restart"), alarm["rerun_text"]
    birth = alarm["births"][0]
    assert (birth["op"], birth["source"], birth["module"]) == ("aten::div", BIRTH, "Model"), birth
    assert alarm["cause"]["class"] == "division-by-zero"
    assert alarm["weights"] == "clean"
    assert run.out == printed  # and stdout shows nothing of a second run


# -- going on after a second run: the loop is where `continue` would have left it -------------------------------------

GOES_ON = """
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
random.seed(0)
own = torch.Generator().manual_seed(3)
rows = torch.randn(48, 4)
model = nn.Sequential(nn.Linear(4, 8), DROPOUT, nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = iter(DataLoader(TensorDataset(rows), 6, num_workers=0))
for step in range(8):
    x = DRAW
    if step == 3:
        x[0] = 0
    if step == 3 and SKIP:
        continue
    optimizer.zero_grad()
    y = model(x / x.norm(dim=1, keepdim=True))
    loss = (y.squeeze(1) - x.sum(1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, f"{x.sum().item():.6f} {loss.item():.6f}")
print([f"{p.double().sum().item():.12f}" for p in model.state_dict().values()])
"""

DRAWS = {
    "the_global_generator": ("torch.randn(6, 4)", "nn.Identity()"),
    "python_random": ("torch.tensor([[random.random() for _ in range(4)] for _ in range(6)])", "nn.Identity()"),
    "a_generator_of_the_scripts_own": ("torch.randn(6, 4, generator=own)", "nn.Identity()"),
    "a_loader_and_dropout": ("next(loader)[0].clone()", "nn.Dropout(0.5)"),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_run_after_skipped_step_matches_explicit_continue(tmp_path, draw):
    """Batches, losses, weights and buffers: neither the vetoed step nor its second run leaves a trace."""
    text = GOES_ON.replace("DRAW", DRAWS[draw][0]).replace("DROPOUT", DRAWS[draw][1])
    run = helpers.run(tmp_path, text.replace("SKIP", "False"), "--on-alarm", "skip")
    assert run.the_alarm()["rerun_by"] == "rewind" and run.code == 0, run.text()
    wanted = plain_runs(tmp_path, {"continue": [helpers.write_script(tmp_path, text.replace("SKIP", "True"), "c.py")]})
    assert [line for line in run.out.splitlines() if not line.startswith("3 ")] == wanted["continue"][1].splitlines()


def test_birth_line_occurs_once_in_the_script():
    assert sum(line.strip() == BIRTH for line in HEAD.splitlines()) == 1


WRITES = """
import collections
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
BAD = 4


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 3)
        self.average = nn.Linear(4, 3).requires_grad_(False)
        self.shadow = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.steps, self.losses, self.recent = 0, [], collections.deque(maxlen=3)
        self.seen, self.by_name = set(), collections.OrderedDict()
        self.queue = [(i, torch.randn(6, 4)) for i in range(9)]

    def train_step(self, i, x):
        global CALLS
        CALLS += 1
        self.steps += 1
        self.seen.add(i)
        loss = (self.model(x) / (x.sum() * (0 if i == BAD else 1)) - 1).pow(2).mean()
        self.losses.append(f"{loss.item():.6f}")
        self.recent.append(i)
        self.by_name[f"step {i}"] = self.steps
        for mine, p in zip(self.shadow, self.model.parameters()):
            mine.mul_(0.9).add_(p.detach(), alpha=0.1)
        for mine, p in zip(self.average.parameters(), self.model.parameters()):
            mine.data.mul_(0.9).add_(p.data, alpha=0.1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


CALLS = 0


class Reader:
    def __init__(self, trainer):
        self.trainer, self.count = trainer, 0

    def __iter__(self):
        for i, x in self.trainer.queue:
            self.count += 1
            yield i, x
        print("read", self.count)


def main():
    t = Trainer()
    TAKE
    print(t.steps, CALLS, t.losses, list(t.recent), sorted(t.seen), dict(t.by_name))
    for p in (*t.model.parameters(), *t.average.parameters(), *t.shadow):
        print(p.tolist())


main()
"""

TAKES = {
    "each": "for i, x in t.queue: t.train_step(i, x)",
    "drawn": "for i, (_, x) in enumerate(Reader(t)): t.train_step(i, x)",  # nothing but the loop holds the reader
    "pop": "while t.queue: t.train_step(*t.queue.pop(0))",
}


@pytest.mark.parametrize("take", TAKES)
def test_rerun_leaves_program_objects_unchanged(tmp_path, take):
    """Counters, lists, averages by hand: written once. `pop` goes another way the second time, and is not mistaken."""
    script = WRITES.replace("TAKE", TAKES[take])
    watched = helpers.run(tmp_path, script, "--on-alarm", "warn")
    assert watched.out == helpers.plain(tmp_path, "train.py").out, watched.text()
    alarm = watched.alarms[0]
    assert (alarm["step"], alarm["rerun"]) == (4, "persistent"), watched.text()
    assert alarm["rerun_by"] == ("restart" if take == "pop" else "rewind")


@pytest.mark.parametrize("take", TAKES)
def test_objects_are_written_once_after_a_skipped_step(tmp_path, take):
    script = WRITES.replace("TAKE", TAKES[take])
    watched = helpers.run(tmp_path, script, "--on-alarm", "skip")
    skipping = script.replace("self.optimizer.step()", "i == BAD or self.optimizer.step()")
    assert watched.code == 0 and len(watched.alarms) == 1, watched.text()
    helpers.write_script(tmp_path, skipping, "reference.py")
    assert watched.out == helpers.plain(tmp_path, "reference.py").out


KILLED = (
    helpers.TRAINING
    + """
import os, signal
for i in range(40):
    opt.zero_grad()
    loss_of(batches[i % 6]).backward()
    opt.step()
    if i == 29:
        os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_last_steps_of_a_killed_run_are_readable(tmp_path):
    killed = helpers.run(tmp_path, KILLED)
    assert killed.report is None and killed.code == -9
    (directory,) = (tmp_path / "finitude-runs").iterdir()
    shown = helpers.finitude(tmp_path, "report", str(directory))
    assert shown.code == 0 and "30 steps were recorded" in shown.out and "step 29   loss " in shown.out, shown.text()
    (directory / "steps.ring").write_bytes(b"not a ring")
    refused = helpers.finitude(tmp_path, "report", str(directory))
    assert refused.code == 3 and "steps.ring" in refused.err


def test_what_torch_func_differentiates_is_explained(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import torch
        from torch.func import grad

        w = torch.nn.Parameter(torch.tensor([2.0, 2.0]))
        opt = torch.optim.SGD([w], lr=0.0)

        def f(p, c):
            return torch.sqrt(p - c).sum()

        for i in range(6):
            c = torch.tensor([1.0, 3.0 if i == 4 else 1.0])
            loss = (w * grad(f)(w, c)).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    )
    alarm = got.the_alarm()
    birth = alarm["births"][0]
    assert (birth["op"], birth["source"]) == ("aten::sqrt", "return torch.sqrt(p - c).sum()")
    assert [use["arg"] for use in birth["inputs"]] == ["self"]
    assert (alarm["cause"]["class"], alarm["cause"]["confidence"]) == ("negative-domain", "proven")


def test_step_behind_skipped_one_is_rerun_in_place(tmp_path):
    got = helpers.run(
        tmp_path,
        """
        import torch
        from torch import nn

        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.randn(9, 4, 3)
        rows[4, 1] = 0
        for i, x in enumerate(rows):
            loss = model(x / x.norm(dim=1, keepdim=True)).sum()
            if i == 5:
                loss = loss + (model.bias - model.bias.detach()).sqrt().sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
        "--on-alarm",
        "skip",
    )
    found = [(a["step"], a["sink"]["kind"], a["rerun_by"], a["rerun_verified"]) for a in got.alarms]
    assert found == [(4, "loss", "rewind", True), (5, "gradient", "rewind", True)], got.text()
