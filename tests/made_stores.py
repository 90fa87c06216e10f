"""Writes a store.sqlite and an events.jsonl as a run leaves them, for those that read them."""

import contextlib
import json
import math
import pathlib
import sqlite3

STARTED = 1_790_000_000  # Unix seconds
TABLES = """
CREATE TABLE info(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE series(id INTEGER PRIMARY KEY, quantity TEXT NOT NULL, optimizer TEXT, parameter TEXT);
CREATE TABLE point(series INTEGER, step INTEGER, last_step INTEGER, time REAL, first REAL, last REAL, min REAL, max REAL,
                   PRIMARY KEY(series, step)) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
WHOLE = {
    "loss": lambda x: 2.5 * math.exp(-4 * x) + 0.08 + 0.02 * math.sin(400 * x),
    "gradient_norm": lambda x: 3.0 * math.exp(-3 * x) + 0.3 + 0.1 * math.sin(900 * x),
    "gradient_absmax": lambda x: 0.4 * math.exp(-3 * x) + 0.02,
    "learning_rate": lambda x: 3e-4 * min(1.0, 20 * x) * (0.5 + 0.5 * math.cos(math.pi * x)),
    "step_seconds": lambda x: 0.08 + 0.01 * math.sin(3000 * x),
}


@contextlib.contextmanager
def opened(folder):
    """A writer's connection."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(pathlib.Path(folder, "store.sqlite"))
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def point(series, step, last_step, value, spread=0.05, seconds=0.1):
    low, high = sorted((value * (1 - spread), value * (1 + spread)))
    return series, step, last_step, STARTED + last_step * seconds, value, value, low, high


def store(folder, steps=1000, parameters=4, most=2048, optimizer="AdamW", seed=0, dtype=None):
    """A training of so many steps: a quantity of WHOLE each, and two of each parameter; at most `most` points each.
    dtype: of the parameters, which then have updates too; None: a store of an earlier build, which has neither."""
    with opened(folder) as db:
        db.executescript(TABLES)
        if dtype:
            db.execute("ALTER TABLE series ADD COLUMN dtype TEXT")
        info = {
            "rank": "0",
            "world": "1",
            "pid": "1",
            "host": "here",
            "started": "2026-09-21T14:13:20Z",
            "version": "1",
        }
        db.executemany("INSERT INTO info VALUES(?, ?)", info.items())
        width = -(-steps // most)
        starts = range(0, steps, width)
        number = 0

        def add(quantity, parameter, value):
            nonlocal number
            number += 1
            named = (number, quantity, optimizer, parameter)
            db.execute("INSERT INTO series(id, quantity, optimizer, parameter) VALUES(?, ?, ?, ?)", named)
            rows = (point(number, at, min(at + width, steps) - 1, value(at / steps)) for at in starts)
            db.executemany("INSERT INTO point VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows)

        for quantity, value in WHOLE.items():
            add(quantity, None, lambda x, value=value: value(x) * (1 + 0.1 * seed))
        for row in range(parameters):
            name = f"layers.{row // 2}.{('weight', 'bias')[row % 2]}"
            add("gradient_absmax", name, lambda x, row=row: 0.2 * math.exp(-3 * x) * (1 + row % 7) + 1e-4)
            add("weight_absmax", name, lambda x, row=row: 0.1 * (1 + row % 5) * (1 + 2 * x))
            if dtype:
                add("update_ratio", name, lambda x: 1e-3 * math.exp(-x))
        if dtype:
            db.execute("UPDATE series SET dtype = ? WHERE parameter IS NOT NULL", (dtype,))
    return pathlib.Path(folder)


def event(kind, step, text="", **more):
    of_all = {"schema": 1, "time": "2026-09-21T14:14:00.000Z", "step": step, "rank": 0, "optimizer": "AdamW"}
    return {**of_all, "kind": kind, "text": text, **more}


ALARM = {
    "step": 900,
    "onset": {"step": 700, "name": "layers.1.weight", "rate": 1.02, "lr": 3e-4, "text": "grew since step 700"},
    "cause": {"class": "log-of-zero"},
    "births": [{"op": "aten::log", "file": "model.py", "line": 87}],
}


def events(folder, *given):
    """Those given, else one of every kind that is drawn."""
    given = given or (
        event("start", None, "python train.py"),
        event(
            "warning",
            640,
            "layers.1.weight grows",
            what="growth",
            name="layers.1.weight",
            since=600,
            horizon=[200, 400],
        ),
        event("checkpoint", 500, "checkpoint is good", path="ckpt/500.pt", verdict="good"),
        event("alarm", 900, "loss is NaN", explained=False),
        event("alarm", 900, "loss is NaN, born in aten::log", explained=True, alarm=ALARM),
        event("end", None, "alarm", outcome="alarm"),
    )
    path = pathlib.Path(folder, "events.jsonl")
    with path.open("a") as f:
        f.writelines(json.dumps(one) + "\n" for one in given)
    return path


def run(folder, **more):
    """A run folder with both."""
    store(folder, **more)
    events(folder)
    (pathlib.Path(folder) / "run.json").write_text(json.dumps({"schema": 1, "command": ["python", "train.py"]}))
    return pathlib.Path(folder)


def varints(ids):
    """As docs/store.md has the rows of a batch."""
    data, before = bytearray(), 0
    for one in ids:
        rest = (one - before) << 1 ^ (one - before) >> 63
        before = one
        while rest >= 0x80:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return bytes(data)


def batches(folder, steps, dataset=("Texts", 500), optimizer="AdamW"):
    """steps: {step: (event or None, rows of each micro-batch ...)}"""
    with opened(folder) as db:
        db.executescript("""
            CREATE TABLE IF NOT EXISTS dataset(id INTEGER PRIMARY KEY, class TEXT, length INTEGER);
            CREATE TABLE IF NOT EXISTS batch(optimizer TEXT, step INTEGER, micro_batch INTEGER, dataset INTEGER,
                epoch INTEGER, worker INTEGER, applied INTEGER, event TEXT, count INTEGER, ids BLOB,
                PRIMARY KEY(optimizer, step, micro_batch)) WITHOUT ROWID;
        """)
        db.execute("INSERT OR REPLACE INTO dataset VALUES(1, ?, ?)", dataset)
        for step, (what, *of_step) in steps.items():
            for number, ids in enumerate(of_step):
                row = (optimizer, step, number, 1, 2, 0, what != "alarm", what, len(ids), varints(ids))
                db.execute("INSERT INTO batch VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
