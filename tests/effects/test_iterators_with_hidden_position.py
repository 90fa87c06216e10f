"""What the program reads one thing after the other, by other means than its loop: a second run reads nothing away, and
what only looks like it keeps no step from being run again in place."""

import textwrap

import pytest

import helpers

# MAKE gives `step_data`, a function that gives the next row or None.
READS = """
import csv, ctypes, io, itertools, json, pickle, sqlite3, struct, zipfile
from concurrent.futures import ThreadPoolExecutor
import torch

torch.manual_seed(0)
ROWS = [[1., 2.], [3., 4.], [5., 6.], [7., 8.]]
ROWS[BAD] = [0., 0.]
open("rows.txt", "w").write("".join(json.dumps(r) + "\\n" for r in ROWS))

MAKE

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
while (row := step_data()) is not None:
    print("row", row, flush=True)
    x = torch.tensor([float(v) for v in row])
    loss = net(x).square().mean() * torch.log(x.sum())
    opt.zero_grad(); loss.backward(); opt.step()
print("end")
"""

KINDS = {
    "readline": """
        f = open("rows.txt")
        def step_data():
            return json.loads(line) if (line := f.readline()) else None""",
    "lines": """
        lines = map(json.loads, open("rows.txt"))
        def step_data(): return next(lines, None)""",
    "csv": """
        reader = csv.reader(io.StringIO("".join(f"{a},{b}\\n" for a, b in ROWS)))
        def step_data(): return next(reader, None)""",
    "cursor": """
        db = sqlite3.connect(":memory:")
        db.execute("create table t(a, b)")
        db.executemany("insert into t values(?, ?)", ROWS)
        cursor = db.execute("select * from t order by rowid")
        def step_data(): return cursor.fetchone()""",
    "pickle": """
        with open("rows.p", "wb") as f:
            for r in [*ROWS, None]: pickle.dump(r, f)
        step_data = pickle.Unpickler(open("rows.p", "rb")).load""",
    "struct": """
        values = struct.iter_unpack("2d", b"".join(struct.pack("2d", *r) for r in ROWS))
        def step_data(): return next(values, None)""",
    "threads": """
        rows = ThreadPoolExecutor(2).map(list, ROWS)
        def step_data(): return next(rows, None)""",
    "zip": """
        with zipfile.ZipFile("rows.zip", "w") as z: z.write("rows.txt")
        inside = zipfile.ZipFile("rows.zip").open("rows.txt")
        def step_data():
            return json.loads(line) if (line := inside.readline()) else None""",
    "slots": """
        class Rows:
            __slots__ = ("at",)
            def __init__(self): self.at = 0
            def __iter__(self): return self
            def __next__(self):
                if self.at == len(ROWS): raise StopIteration
                self.at += 1
                return ROWS[self.at - 1]
        rows = Rows()
        def step_data(): return next(rows, None)""",
    "held": """
        class Trainer:
            def __init__(self): self.rows = iter(ROWS)
            def next(self): return next(self.rows, None)
        step_data = Trainer().next""",
}


def script(kind, bad):
    return READS.replace("MAKE", textwrap.dedent(KINDS[kind])).replace("BAD", str(bad))


@pytest.mark.parametrize("bad", [pytest.param(2, id="within"), pytest.param(3, id="last", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_takes_nothing_of_the_data(tmp_path, kind, bad):
    got = helpers.run(tmp_path, script(kind, bad), "--on-alarm", "skip")
    assert got.code == 0 and got.out == helpers.plain(tmp_path, "train.py").out, got.text()
    alarm = got.the_alarm()
    assert alarm["step"] == bad and "cannot be rewound, and this step may have" in alarm["rerun_text"], got.text()


def test_data_exhausted_in_rerun_never_ends_the_program(tmp_path):
    got = helpers.run(tmp_path, script("slots", 3), "--on-alarm", "warn")
    assert got.out.endswith("end\n") and len(got.alarms) == 1, got.text()


INNOCENT = """
import csv, io, itertools, json
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
ROWS = [[1., 2.], [3., 4.], [0., 0.], [7., 8.]]
open("rows.txt", "w").write("".join(json.dumps(r) + "\\n" for r in ROWS))

def cycle(loader):
    while True:
        for batch in loader:
            yield batch

MAKE

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 1e-3)
for i in range(4):
    x = step_data(i)
    loss = net(x).square().mean() * torch.log(x.sum())
    opt.zero_grad(); loss.backward(); opt.step()
print("end")
"""

HARMLESS = {
    "read before": """
        f = open("rows.txt")
        head = f.readline()
        reader = csv.reader(f)
        first = next(reader)
        def step_data(i): return torch.tensor(ROWS[i])""",
    "by index": """
        class Rows(Dataset):
            def __init__(self):
                self.file, self.starts = open("rows.txt", "rb"), [0]
                for line in self.file: self.starts.append(self.starts[-1] + len(line))
            def __len__(self): return 4
            def __getitem__(self, i):
                self.file.seek(self.starts[i])
                return torch.tensor(json.loads(self.file.readline()))
        class Trainer:
            def __init__(self): self.data, self.rows = data, iter(DataLoader(data))
            def next(self, i): return next(self.rows)
        data = Rows()
        step_data = Trainer().next""",
    "loader": """
        class Trainer:
            def __init__(self): self.rows, self.ids = cycle(DataLoader(torch.tensor(ROWS))), itertools.count()
            def next(self, i):
                next(self.ids)
                return next(self.rows)
        step_data = Trainer().next""",
    "written": """
        log = io.StringIO()
        def step_data(i):
            log.write(f"{i}\\n")
            if i == 3: print(log.getvalue())
            return torch.tensor(ROWS[i])""",
    "at its end": """
        class Config:
            def __init__(self):
                self.rows = iter(ROWS)
                list(self.rows)
        config = Config()
        def step_data(i): return torch.tensor(ROWS[i])""",
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_iterator_unused_by_step_does_not_prevent_rerun(tmp_path, kind):
    got = helpers.run(tmp_path, INNOCENT.replace("MAKE", textwrap.dedent(HARMLESS[kind])), "--on-alarm", "skip")
    assert got.code == 0 and got.out == helpers.plain(tmp_path, "train.py").out, got.text()
    alarm = got.the_alarm()
    assert (alarm["step"], alarm["rerun_by"], alarm["rerun_verified"]) == (2, "rewind", True), got.text()
