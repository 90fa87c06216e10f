"""What a loop is kept going by may be such that it cannot be set back: a list that batches are taken out of, a count
that runs out, a batch whose parts are popped. A second run in place is tried in a copy of the process first, so that
none ends the training."""

import pytest

import helpers

pytestmark = pytest.mark.slow

HEAD = """
import collections, heapq, itertools, os, threading, torch
from torch import nn
torch.manual_seed(0)
BAD, LEAVES_OUT = {bad}, {leaves_out}
model = nn.Linear(3, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
data = [torch.randn(4, 3) for _ in range(8)]
def train(x, i):
    opt.zero_grad()
    loss = (model(x) / (0.0 if i == BAD else 1.0)).pow(2).mean()
    loss.backward()
    if not (LEAVES_OUT and i == BAD): opt.step()
    print(i)
class Trainer:
    def __init__(self, **held): self.__dict__.update(held)
    def more(self): return self.step < 8
LOOP
print("weights", [float(p.sum()) for p in model.parameters()])
"""
BIRTH = "loss = (model(x) / (0.0 if i == BAD else 1.0)).pow(2).mean()"

# name: (code of the program, the ways that serve)
LOOPS = {
    "a list that is popped": (
        "todo = list(enumerate(data))[::-1]\nwhile todo:\n    i, x = todo.pop()\n    train(x, i)",
        "restart",
    ),
    "a deque": (
        "todo = collections.deque(enumerate(data))\ntry:\n    while True:\n        i, x = "
        "todo.popleft()\n        train(x, i)\n"
        "except IndexError:\n    print('end')",
        "restart",
    ),
    "a heap": (
        "todo = [(i, i) for i in range(8)]\nwhile todo:\n    i = heapq.heappop(todo)[0]\n    train(data[i], i)",
        "restart",
    ),
    "a set": (
        "todo = set(range(8))\nwhile todo:\n    i = min(todo)\n    todo.remove(i)\n    train(data[i], i)",
        "restart",
    ),
    "an attribute that is bound again": (
        "t = Trainer(todo=list(range(8)))\nwhile t.todo:\n    i, t.todo = t.todo[0], t.todo[1:]\n    train(data[i], i)",
        "restart",
    ),
    "global_step": (
        "t, i = Trainer(step=0), 0\nwhile True:\n    share = torch.tensor(1 / (1 + t.step))\n    "
        "train(data[i] * share, i)\n    t.step += 1\n"
        "    i += 1\n    if t.step >= 8: break",
        "rewind",
    ),
    "what is left": (
        "t = Trainer(left=8)\nwhile t.left > 0:\n    train(data[8 - t.left], 8 - t.left)\n    t.left -= 1",
        "rewind",
    ),
    "counted before": (
        "t = Trainer(step=0)\nwhile t.more():\n    i = t.step\n    t.step += 1\n    train(data[i], i)",
        "rewind restart",
    ),
    "a dict": (
        "state = {{'step': 0, 'done': False}}\nwhile not state['done']:\n    "
        "train(data[state['step']], state['step'])\n"
        "    state['step'] += 1\n    state['done'] = state['step'] == 8",
        "rewind",
    ),
    "an event": (
        "done, n = threading.Event(), 0\nwhile not done.is_set():\n    train(data[n], n)\n    n += "
        "1\n    n == 8 and done.set()",
        "rewind restart",
    ),
    "an endless count": (
        "t = Trainer(count=itertools.count())\nwhile (i := next(t.count)) < 8: train(data[i], i)",
        "restart",
    ),
    "parts of a batch that are popped": (
        "for b in [{{'i': i, 'x': x}} for i, x in enumerate(data)]: train(b.pop('x'), b.pop('i'))",
        "restart",
    ),
    "parts of a loader's batch that are popped": (
        "data = [{{'i': i, 'x': x}} for i, x in enumerate(data)]\nfor b in "
        "torch.utils.data.DataLoader(data, collate_fn=lambda b: dict(b[0])):\n"
        "    train(b.pop('x'), b.pop('i'))",
        "rewind",
    ),
    "a loader's batch that is emptied": (
        "for b in torch.utils.data.DataLoader(list(enumerate(data)), collate_fn=lambda b: "
        "list(b[0])): train(b.pop(), b.pop())",
        "rewind",
    ),
    "a check of the order": (
        "t = Trainer(last=-1)\nfor i, x in enumerate(data):\n    assert t.last == i - 1\n    t.last "
        "= i\n    train(x, i)",
        "restart",
    ),
    "a descriptor that is read": (
        "open('in.bin', 'wb').write(bytes(range(8)))\nfd = os.open('in.bin', os.O_RDONLY)\n"
        "while (got := os.read(fd, 1)): train(data[got[0]], got[0])",
        "restart",
    ),
    "a lock file that is taken again": (
        "for i, x in enumerate(data):\n    os.close(os.open('lock', os.O_CREAT | os.O_EXCL | "
        "os.O_WRONLY))\n    train(x, i)\n"
        "    os.remove('lock')",
        "rewind",
    ),
    "a thread that is asked": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
        "for i, x in enumerate(data): train(pool.submit(lambda: x * 1.0).result(), i)",
        "rewind",
    ),
}


def program(loop, bad, leaves_out=False):
    return HEAD.replace("LOOP", loop).format(bad=bad, leaves_out=leaves_out)


@pytest.mark.parametrize("bad", [4, 7])
@pytest.mark.parametrize("name", LOOPS)
def test_training_continues_as_if_the_step_were_skipped(tmp_path, name, bad):
    loop, ways = LOOPS[name]
    got = helpers.run(tmp_path, program(loop, bad), "--on-alarm", "skip")
    helpers.write_script(tmp_path, program(loop, bad, True), "plain.py")
    without = helpers.plain(tmp_path, "plain.py")
    assert without.code == 0, without.text()
    alarm = got.the_alarm()
    assert (got.code, got.out) == (0, without.out), got.text()
    assert (alarm["step"], alarm["rerun"], alarm["rerun_verified"]) == (bad, "persistent", True), got.text()
    assert alarm["rerun_by"] in ways and alarm["births"][0]["source"] == BIRTH, got.text()


def test_a_loss_scaler_comes_back_too(tmp_path):
    """Where a loss is bad already, `GradScaler.step` is where its step is met."""
    got = helpers.run(
        tmp_path,
        """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for i, x in enumerate(torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)):
    opt.zero_grad()
    loss = torch.log(model(x).sigmoid() * (0.0 if i == 5 else 1.0)).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
""",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "rewind", True), got.text()
    assert alarm["fix"]["verified"], got.text()  # the flag that some gradient is bad is no value that the fix changes


def test_gradient_based_loss_is_silent_in_the_copy(tmp_path):
    got = helpers.run(
        tmp_path,
        """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(4, 4, requires_grad=True)
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = ((slope.norm(dim=1) - 1) ** 2).mean() + model(x).mean() * (float("nan") if i == 5 else 1.0)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    )
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (5, "rewind", True), got.text()


def test_the_copy_reaches_no_other_process(tmp_path):
    """A pipe of a library's, which the frames of the program do not reach: what the copy asked for, the program would
    wait for."""
    got = helpers.run(
        tmp_path,
        program(
            "import multiprocessing, types\nours, its = multiprocessing.Pipe()\n"
            "def answer(its):\n    while (i := its.recv()) is not None: its.send(i * 2)\n"
            "process = multiprocessing.get_context('fork').Process(target=answer, args=(its,)); process.start()\n"
            "torch.twice = lambda i, ours=ours: (ours.send(i), ours.recv())[1]\ndel ours, its\n"
            "for i, x in enumerate(data): assert torch.twice(i) == 2 * i; train(x, i)\n"
            "torch.twice.__defaults__[0].send(None); process.join()",
            4,
        ),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert got.code == 0 and got.out.split()[:8] == list("01234567") and alarm["births"][0]["source"] == BIRTH, (
        got.text()
    )
    assert (alarm["rerun_by"], alarm["rerun_verified"]) == ("restart", True), got.text()
    assert "the step exchanges values with another process" in alarm["rerun_text"], alarm["rerun_text"]


def test_locks_that_processes_share_are_held_as_before(tmp_path):
    """The copy ends in the middle of what is locked."""
    got = helpers.run(
        tmp_path,
        program(
            "import multiprocessing, types\ncontext = multiprocessing.get_context('fork')\nours, "
            "its = context.Pipe()\ntorch.locks = [context.Lock(), context.BoundedSemaphore(2)]\n"
            "def answer(its):\n    while (i := its.recv()) is not None: its.send(i * 2)\n"
            "process = context.Process(target=answer, args=(its,)); process.start()\n"
            "torch.twice = lambda i, ours=ours: (ours.send(i), ours.recv())[1]\ndel ours, its\n"
            "for i, x in enumerate(data):\n    assert torch.locks[1].acquire(timeout=20)\n    "
            "assert torch.locks[0].acquire(timeout=20)\n"
            "    assert torch.twice(i) == 2 * i\n    torch.locks[0].release()\n    train(x, i)\n    "
            "torch.locks[1].release()\n"
            "torch.twice.__defaults__[0].send(None); process.join()\nprint(torch.locks[1].get_value())",
            4,
        ),
        "--on-alarm",
        "skip",
    )
    alarm = got.the_alarm()
    assert got.code == 0 and got.out.split()[:9] == [*"01234567", "2"] and alarm["rerun_by"] == "restart", got.text()


def test_workers_of_a_loader_outlive_the_copy(tmp_path):
    """The copy drops the loop's iterator as it goes astray, which ends workers in the process that they belong to."""
    loop = (
        "class Set(torch.utils.data.Dataset):\n    def __len__(self): return 8\n    def "
        "__getitem__(self, i): return {{'p': {{'x': data[i], 'i': i}}}}\n"
        "for b in torch.utils.data.DataLoader(Set(), num_workers=2, collate_fn=lambda b: b[0]): "
        "train(b['p'].pop('x'), b['p'].pop('i'))"
    )
    got = helpers.run(tmp_path, program(loop, 4), "--on-alarm", "skip")
    helpers.write_script(tmp_path, program(loop, 4, True), "plain.py")
    alarm = got.the_alarm()
    assert (got.code, got.out) == (0, helpers.plain(tmp_path, "plain.py").out), got.text()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "restart", True), got.text()
    assert "the second run would not come back to this step" in alarm["rerun_text"], alarm["rerun_text"]


def test_the_copy_leaves_nothing_behind(tmp_path):
    """What it makes under names never used before, and what it puts in the place of a file: there only if the run in
    place is made."""
    about = tmp_path / "about"
    about.mkdir()
    loop = (
        "import json, tempfile, uuid\ntodo = list(enumerate(data))[::-1]\nwhile todo:\n    "
        "os.makedirs(f'made/{{uuid.uuid4().hex}}/in')\n"
        "    i, x = todo.pop()\n    number, path = tempfile.mkstemp(dir='.', prefix='new-')\n"
        "    with os.fdopen(number, 'w') as f: json.dump({{'left': len(todo)}}, f)\n    "
        "os.replace(path, 'latest.json')\n    train(x, i)"
    )
    got = helpers.run(tmp_path, program(loop, 4), env={"TMPDIR": str(about)}, cold=True, python=helpers.warm_python())
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "restart", True), got.text()
    first = 5 if "written a second time" not in alarm["rerun_text"] else 10  # the second process has made its own
    assert (tmp_path / "latest.json").read_text() == '{"left": 3}', got.text()
    assert (
        len(list((tmp_path / "made").iterdir())) == first
        and not list(tmp_path.glob("new-*"))
        and not list(about.glob("finitude-*"))
    ), got.text()


def test_rerun_folder_with_a_new_name_is_complete(tmp_path):
    loop = (
        "import uuid, pathlib\nfor i, x in enumerate(data):\n    folder = pathlib.Path('made', "
        "uuid.uuid4().hex); folder.mkdir(parents=True)\n"
        "    (folder / 'a.txt').write_text('a'); open(folder / 'a.txt', 'a').write('b'); name = "
        "str(folder); del folder\n    train(x, i)"
    )
    got = helpers.run(tmp_path, program(loop, 4), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 0 and (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "rewind", True), (
        got.text()
    )
    made = {p: sorted((f.name, f.read_text()) for f in p.iterdir()) for p in (tmp_path / "made").iterdir()}
    again = [p for p in made if str(p.relative_to(tmp_path)) in alarm["rerun_text"]]
    assert len(made) == 9 and len(again) == 1 and made[again[0]] == [("a.txt", "ab")], (made, alarm["rerun_text"])


def test_replaced_file_is_that_of_the_first_run(tmp_path):
    loop = (
        "import tempfile, uuid\nfor i, x in enumerate(data):\n    "
        "os.makedirs(f'made/{{uuid.uuid4().hex}}/in')\n    number, path = tempfile.mkstemp(dir='.', "
        "prefix='new-')\n"
        "    with os.fdopen(number, 'w') as f: f.write(f'{{i}} {{path}}')\n    os.replace(path, 'latest.txt')\n"
        "    if not os.path.exists('first.txt'): os.link('latest.txt', 'first.txt')\n    train(x, "
        "i); assert os.path.samefile('latest.txt', 'latest.txt')\n    last = path"
    )
    got = helpers.run(tmp_path, program(loop + "\n    if i == 4: break", 4), "--on-alarm", "skip")
    alarm = got.the_alarm()
    assert got.code == 0 and (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (4, "rewind", True), (
        got.text()
    )
    assert (tmp_path / "latest.txt").read_text().startswith("4 ") and not list(tmp_path.glob("new-*")), got.text()
    made = [str(p.relative_to(tmp_path)) for p in (tmp_path / "made").iterdir()]
    assert len(made) == 6 and sum(m in alarm["rerun_text"] for m in made) == 1, (made, alarm["rerun_text"])
    assert "latest.txt" not in alarm["rerun_text"], alarm["rerun_text"]


def test_nothing_of_the_copy_is_left_behind(tmp_path):
    (tmp_path / "scratch").mkdir()
    got = helpers.training(
        tmp_path,
        """
        for i, x in enumerate(batches):
            opt.zero_grad()
            (loss_of(x) * (NAN if i == 3 else 1)).backward()
            opt.step()
    """,
        "--on-alarm",
        "skip",
        env={"TMPDIR": str(tmp_path / "scratch")},
        cold=True,
        python=helpers.warm_python(),
    )
    assert got.the_alarm()["rerun_by"] == "rewind", got.text()
    assert not list((tmp_path / "scratch").glob("finitude*"))


PIPE = """
import os, socket
ends = {ends}
{fill}
while (text := os.{read}):
    k = text[0] - 48
    opt.zero_grad()
    loss_of(batches[k] / (0 if k == 3 else 1)).backward()
    opt.step()
    print(k, flush=True)
"""
ENDS = {
    "a pipe": ("os.pipe()", "os.write(ends[1], b'012345'); os.close(ends[1])", "read(ends[0], 1)"),
    "a socket": (
        "[s.detach() for s in socket.socketpair()]",
        "os.write(ends[1], b'012345'); os.close(ends[1])",
        "read(ends[0], 1)",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_copy_takes_nothing_out_of(tmp_path, name):
    ends, fill, read = ENDS[name]
    got = helpers.training(tmp_path, PIPE.format(ends=ends, fill=fill, read=read), "--on-alarm", "skip")
    assert (got.code, got.out.split()) == (0, list("012345")), got.text()
    assert got.the_alarm()["rerun_by"] == "restart" and "another process" in got.the_alarm()["rerun_text"], got.text()
