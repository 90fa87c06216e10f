"""Which line of the data set's own code makes a sample bad, or that it is stored so: the sample is taken out of it once
more."""

import pathlib
import sys

import pytest

import helpers

PROGRAM = """
import random
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0), np.random.seed(0), random.seed(0)

{code}

if __name__ == "__main__":
    data = Data()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, shuffle=True{loader}):
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
DATA = """
class Data(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.values = rng.random((24, 4)).astype(np.float32)
        {init}

    def __len__(self):
        return 24

    def __getitem__(self, i):
        {get}
        return row, np.float32(i % 2)
"""


def reported(folder, code, loader="", *options):
    got = helpers.run(folder, PROGRAM.replace("{code}", code.strip()).replace("{loader}", loader), *options)
    birth = got.the_alarm()["births"][0]
    assert birth["phase"] == "data" and birth["samples"] == [13] and birth["rows_in"] == "batch", got.text()
    assert got.the_alarm()["cause"]["class"] == "bad-data"
    return birth, birth["datum"], got


def data(init, *get):
    return DATA.replace("{init}", init).replace("{get}", "\n        ".join(get))


COMPOSED = """
class Compose:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


def to_range(x):
    low, high = x.min(), x.max()
    return (x - low) / (high - low)


def in_place(x):
    x -= x.mean()
    x /= x.std()


PIPELINE = Compose(lambda x: x * 2, to_range)
"""
LOG = """
def logarithm(x):
    x = np.log(x)
    return x


def centred(x):
    return x - x.mean()
"""
HEAVY = """
import pathlib
pathlib.Path("heavy.py").write_text("n = 0\\ndef f():\\n    global n\\n    n += 1\\nfor _ in range(70000):\\n    f()\\n")
"""
FLAT = "self.values[13] = 0.5"
MADE = {
    "a transform of a chain": (
        COMPOSED + data(FLAT, "row = PIPELINE(self.values[i])"),
        "return (x - low) / (high - low)",
        "to_range",
    ),
    "a lambda": (
        data(FLAT, "row = (lambda x: (x - x.mean()) / x.std())(self.values[i])"),
        "row = (lambda x: (x - x.mean()) / x.std())(self.values[i])",
        "Data.__getitem__.<locals>.<lambda>",
    ),
    "an argument that is written in place": (
        COMPOSED + data(FLAT, "row = self.values[i].copy()", "in_place(row)"),
        "x /= x.std()",
        "in_place",
    ),
    "plain numbers": (
        data(FLAT, "scale = float(self.values[i].std()) or float('inf')", "row = self.values[i] / scale * scale"),
        "row = self.values[i] / scale * scale",
        "Data.__getitem__",
    ),
    "a torch operation": (
        data(FLAT, "x = torch.from_numpy(self.values[i])", "row = x / (x - 0.5)"),
        "row = x / (x - 0.5)",
        "Data.__getitem__",
    ),
    "a mark for what is missing": (
        data(
            "self.known = [i != 13 for i in range(24)]",
            "row = self.values[i].copy()",
            "row[1] = row[1] if self.known[i] else np.nan",
        ),
        "row[1] = row[1] if self.known[i] else np.nan",
        "Data.__getitem__",
    ),
    "a NaN that was filled in before does not count": (
        data(
            "self.values[:, 0] = np.nan; self.values[13, 1:] = 0.5",
            "row = self.values[i].copy()",
            "row[np.isnan(row)] = 0.5",
            "row = row / row.std() * np.sign(row.std())",
        ),
        "row = row / row.std() * np.sign(row.std())",
        "Data.__getitem__",
    ),
    "the logarithm of zero that NaN comes of later": (
        LOG + data("self.values[13, 1] = 0", "row = centred(logarithm(self.values[i]))"),
        "x = np.log(x)",
        "logarithm",
    ),
    "after a module that takes long to import": (
        HEAVY + data(FLAT, "import heavy", "row = self.values[i]", "row = (row - 0.5) / row.std()"),
        "row = (row - 0.5) / row.std()",
        "Data.__getitem__",
    ),
}


@pytest.mark.parametrize("code, source, function", MADE.values(), ids=MADE)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_line_that_makes_it(tmp_path, code, source, function, workers):
    birth, datum, got = reported(tmp_path, code, f", num_workers={workers}" if workers else "")
    if sys.version_info < (3, 11):
        function = function.rpartition(".")[2]  # a code object has no longer name there
    assert (datum["how"], datum["source"], datum["function"], datum["sample"]) == ("made", source, function, 13), (
        got.text()
    )
    assert (birth["source"], birth["line"]) == (source, datum["line"]), got.text()
    assert birth["op"] == ("aten::div" if source == "row = x / (x - 0.5)" else ""), "of torch's it is named"
    assert "sample 13 is made" in " ".join(got.err.split()) and source in got.err


PLAIN = """
def scaled(row):
    return [(v - m) * s for v, (m, s) in zip(row, [(0.5, 2.0)] * len(row))]
"""
TABLE = "self.table = self.values.tolist(); self.table[13][{at}] = float('nan')"
STORED = {
    "a list that goes through a loop in brackets": (
        PLAIN + data(TABLE.format(at=2), "row = np.float32(scaled(self.table[i]))"),
        "row[2]",
    ),
    "a loop in brackets that calls one": (
        PLAIN + data(TABLE.format(at=3), "row = [scaled(r) for r in self.table[i:i + 1]][0]", "row = np.float32(row)"),
        "self.table[i:i + 1][0][3]",
    ),
    "the first of the values of a loop": (
        PLAIN
        + data(
            TABLE.format(at=0),
            "some = [self.table[i], self.table[0]]",
            "row = np.float32([scaled(r) for r in some][0])",
        ),
        "self.table[i][0]",
    ),
    "a cell of an array": (
        data("self.values[13, 2] = np.nan", "row = (self.values[i] - 0.5) * 2"),
        "self.values[i][2]",
    ),
    "a text that is no number": (
        data(
            "self.rows = [{'a': '1', 'b': 'nan' if i == 13 else '2'} for i in range(24)]",
            "row = self.values[i].copy()",
            "row[3] = float(self.rows[i]['b'])",
        ),
        "self.rows[i]['b']",
    ),
    "a tensor of torch's own data set": (
        """
class Data(torch.utils.data.TensorDataset):
    def __init__(self):
        x = torch.rand(24, 4)
        x[13, 1] = torch.nan
        super().__init__(x, torch.rand(24))
""",
        "[0][1]",
    ),
    "below a subset": (
        data("self.values[13, 2] = np.nan", "row = self.values[i]")
        + """
Whole = Data
def Data():
    return torch.utils.data.Subset(Whole(), list(range(24)))
""",
        "self.values[i][2]",
    ),
}


@pytest.mark.parametrize("code, field", STORED.values(), ids=STORED)
def test_it_is_stored_so(tmp_path, code, field):
    birth, datum, got = reported(tmp_path, code)
    assert (datum["how"], datum["field"], datum["sample"]) == ("stored", field, 13), got.text()
    assert birth["source"].startswith("for x, y in DataLoader"), "the line that took it in"


def test_value_made_while_collating_is_located(tmp_path):
    code = (
        data("self.lengths = [0 if i == 13 else 2 for i in range(24)]", "row = self.values[i], self.lengths[i]")
        + """
def together(samples):
    rows = np.stack([values * (length / length if length else float("nan")) for (values, length), label in samples])
    return torch.from_numpy(rows), torch.tensor([label for _, label in samples])
"""
    )
    birth, datum, got = reported(tmp_path, code, ", collate_fn=together")
    assert datum["how"] == "made" and datum["source"].startswith("rows = np.stack(") and "sample" not in datum, (
        got.text()
    )
    assert "every sample is finite as the data set gives it" in datum["text"]
    assert got.the_alarm()["fix"]["text"].startswith("put a finite number there: a padding value of 0"), got.text()


PADDED = """
def scaled(row):
    row = row - row.mean()
    return row / np.abs(row).max()


def together(samples):
    rows = torch.zeros(len(samples), 4)
    for k, (row, _) in enumerate(samples):
        row = scaled(row)
        rows[k] = torch.from_numpy(row)
    return rows, torch.tensor([float(y) for _, y in samples])
"""


def test_loop_rebinding_its_names_is_not_blamed(tmp_path):
    _, datum, got = reported(tmp_path, PADDED + data(FLAT, "row = self.values[i]"), ", collate_fn=together")
    assert (datum["how"], datum["source"], datum["function"]) == ("made", "return row / np.abs(row).max()", "scaled"), (
        got.text()
    )


def test_a_sample_that_random_numbers_make(tmp_path):
    """As it was in its batch, where nothing else draws; it is said that it draws."""
    code = data(
        "self.values[13] = 0.5",
        "row = self.values[i] + 0",
        "if random.random() < 0.9:",
        "    row = row / row.std() * row.std()",
    )
    birth, datum, got = reported(tmp_path, code)
    assert datum["how"] == "made" and datum["source"] == "row = row / row.std() * row.std()", got.text()
    assert "random numbers" in datum["text"]


def test_value_from_a_file_is_reported_as_read(tmp_path):
    values = [[0.5] * 4] * 24
    values[13] = [0.5, float("nan"), 0.5, 0.5]
    for i, row in enumerate(values):
        pathlib.Path(tmp_path, f"{i}.txt").write_text(" ".join(map(str, row)))
    birth, datum, got = reported(tmp_path, data("pass", "row = np.loadtxt(f'{i}.txt', dtype=np.float32)"))
    assert (datum["how"], datum["source"]) == ("read", "row = np.loadtxt(f'{i}.txt', dtype=np.float32)"), got.text()


COUNTS = (
    data(
        "self.values[13] = 0.5; self.taken = []; self.rng = np.random.default_rng(1)",
        "self.taken.append(i)",
        "print('taken', i)",
        "np.random.rand(); random.random(); torch.rand(1); self.rng.random()",
        "row = self.values[i] / np.ptp(self.values[i]) * np.ptp(self.values[i])",
    ).rstrip()
    + """
import atexit
def count():
    print(len(data.taken), random.random(), np.random.rand(), torch.rand(1).item(), data.rng.random())
atexit.register(count)
"""
)


def test_nothing_is_left_of_taking_it_again(tmp_path):
    """A program that goes on has the same lists, words and random numbers as one whose alarms are not explained."""
    text = PROGRAM.replace("{code}", COUNTS.strip()).replace("{loader}", "")
    explained = helpers.run(tmp_path, text, "--on-alarm", "skip")
    assert explained.alarms[0]["births"][0]["datum"]["how"] == "made"
    plain = helpers.run(
        tmp_path, text.replace("/ np.ptp(self.values[i]) * np.ptp(self.values[i])", "* 1"), "--on-alarm", "skip"
    )
    assert not plain.alarms
    assert explained.out == plain.out


def test_a_debugger_keeps_its_trace(tmp_path):
    """No lines then; the sample and that it is bad again are known all the same."""
    code, source, function = MADE["a transform of a chain"]
    text = (
        "import sys\nseen = set()\ndef watch(frame, event, arg):\n    "
        "seen.add(frame.f_code.co_name)\n    return None\nsys.settrace(watch)\n"
    )
    got = helpers.run(
        tmp_path, text + PROGRAM.replace("{code}", code.strip()).replace("{loader}", ""), "--on-alarm", "skip"
    )
    datum = got.alarms[0]["births"][0]["datum"]
    assert (datum["how"], datum["sample"], "line" in datum) == ("unknown", 13, False), got.text()


def test_iterable_data_set_is_not_asked_again(tmp_path):
    code = """
class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(24):
            x = np.full(4, i, dtype=np.float32)
            yield x / (x - 13), np.float32(0)
"""
    got = helpers.run(tmp_path, PROGRAM.replace("{code}", code.strip()).replace("shuffle=True{loader}", ""))
    assert "datum" not in got.the_alarm()["births"][0], got.text()


@pytest.mark.parametrize("workers", ["", ", num_workers=1"])
def test_taped_step_also_names_row_and_sample(tmp_path, workers):
    code = data(
        "self.values = torch.from_numpy(self.values); self.values[13] = 0",
        "row = self.values[i]",
        "row = row / row.sum()",
    )
    got = helpers.run(tmp_path, PROGRAM.replace("{code}", code.strip()).replace("{loader}", workers), "--level", "tape")
    birth = got.the_alarm()["births"][0]
    assert got.the_alarm()["rerun_by"] == "tape" and birth["phase"] == "data", got.text()
    assert (birth["samples"], birth["rows_in"], birth["rows_of"], len(birth["rows"])) == ([13], "batch", 4, 1), birth
    assert birth["datum"]["source"] == "row = row / row.sum()" and birth["datum"]["how"] == "made", birth


AHEAD = """
def one_ahead(loader):
    it = iter(loader)
    batch = next(it)
    while batch is not None:
        following = next(it, None)
        yield batch
        batch = following
"""


@pytest.mark.parametrize(
    "shuffle, bad, taken",
    [(True, 13, "batch"), (False, 13, "x, y"), (False, 23, "batch")],
    ids=["drawn", "in order, taken apart", "in the last batch"],
)
def test_prefetched_batch_is_attributed_to_the_previous_window(tmp_path, shuffle, bad, taken):
    text = PROGRAM.replace(
        "{code}", AHEAD + data("pass", "row = self.values[i]", f"if i == {bad}: row = row / np.float32(0) * 0")
    )
    text = (
        text.replace("shuffle=True{loader}", f"shuffle={shuffle}")
        .replace("for x, y in DataLoader(", f"for {taken} in one_ahead(DataLoader(")
        .replace(
            "):\n        loss", ")):\n        loss" if taken == "x, y" else ")):\n        x, y = batch\n        loss"
        )
    )
    alarm = helpers.run(tmp_path, text).the_alarm()
    birth = alarm["births"][0]
    assert (birth["phase"], birth["samples"], birth["datum"]["how"]) == ("data", [bad], "made"), (
        birth,
        alarm["rerun_text"],
    )
    assert birth["source"].startswith(f"if i == {bad}: row = row / np.float32(0)"), birth
