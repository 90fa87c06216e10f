"""`finitude rows`: what it prints of stores, and the skip lists that it writes."""

import json
import random

import pytest

import made_stores
from finitude.base import skip_list
from finitude.rows import command, found
from finitude.store import reader


@pytest.fixture
def run(tmp_path):
    """Steps 3, 5 and 8 are bad; row 7 is in each of them, and in one of the four others."""
    folder = made_stores.run(tmp_path / "run-1", steps=20, parameters=0)
    steps = {step: (None, [10 + step, 20 + step]) for step in (0, 1, 2)}
    steps |= {3: ("alarm", [1, 7, 90, 91, 92]), 4: (None, [7, 8]), 5: ("alarm", [7, 2], [30])}
    made_stores.batches(folder, steps | {8: ("spike", [2, 7, 60])})
    return folder


@pytest.fixture
def rows(capsys, monkeypatch):
    """(exit code, stdout, stderr) of `finitude rows` with these words."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        code = command.main([str(word) for word in words], lambda quiet: ([], 3))
        return (code, *capsys.readouterr())

    return call


def test_one_step_with_all_its_rows(run, rows):
    code, out, err = rows(run, "--step", 3)
    assert (code, err) == (0, "")
    assert out == (
        "step 3, AdamW: alarm, not applied\n"
        "  micro-batch 0: 5 rows of Texts (500 rows), epoch 2, worker 0\n"
        "    1, 7, 90-92\n"
    )
    document = json.loads(rows(run, "--step=5", "--json")[1])
    assert [batch["ids"] for batch in document["steps"][0]["batches"]] == [[7, 2], [30]]
    assert document["steps"][0]["applied"] is False and document["steps"][0]["event"] == "alarm"


def test_rows_that_bad_steps_share(run, rows):
    code, out, _ = rows(run)
    assert code == 0 and "step 8, AdamW: spike, applied\n" in out
    assert "rows that several of these 3 steps share: 2\n" in out
    assert "row 7 of Texts (500 rows): in 3 of 3 bad steps, in 1 of 4 others, 4 times as often\n" in out
    assert "row 2 of Texts (500 rows): in 2 of 3 bad steps, in 0 of 4 others\n" in out
    document = json.loads(rows(run, "--json")[1])
    assert document["in_each"] == [{"dataset": "Texts", "length": 500, "row": 7}]
    assert [(one["row"], one["bad_steps"], one["lift"]) for one in document["common"]] == [(7, 3, 4.0), (2, 2, None)]


def ids_of(path):
    return [(one.dataset, one.length, one.ids) for one in skip_list.read(path)]


def test_skip_list_has_rows_that_all_share(run, rows, tmp_path):
    path = tmp_path / "skip.jsonl"
    code, _, err = rows(run, "--skip-list", path)
    assert code == 0 and err == f"finitude: written to {path}: 1 rows of Texts\n"
    assert ids_of(path) == [("Texts", 500, [7])]
    assert rows(run, "--step", 5, "--skip-list", path, "-q")[2] == ""
    assert ids_of(path) == [("Texts", 500, [2, 7, 30])]


def test_skip_list_prefers_samples_of_the_alarm(run, rows, tmp_path):
    alarm = {"step": 3, "births": [{"samples": [90, 4]}, {"samples": "x"}], "cause": None}
    made_stores.events(run, made_stores.event("alarm", 3, explained=True, alarm=alarm))
    path = tmp_path / "skip.jsonl"
    assert "    the alarm names 90\n" in rows(run, "--skip-list", path)[1]
    assert ids_of(path) == [("Texts", 500, [2, 7, 90])]  # 2 and 7 are in both of the others


def test_rows_without_common_ones_are_all_skipped(tmp_path):
    folder = made_stores.run(tmp_path / "run-1", steps=3, parameters=0)
    made_stores.batches(folder, {0: ("alarm", [1, 2]), 1: ("alarm", [3])})
    assert [one.ids for one in found.skip_list_of(str(folder))] == [[1, 2, 3]]


def test_a_run_without_rows_says_why(tmp_path, rows):
    old = made_stores.run(tmp_path / "old", steps=3, parameters=0)
    code, out, err = rows(old)
    assert (code, out) == (3, "") and "of a version that keeps no rows" in err
    new = made_stores.run(tmp_path / "new", steps=3, parameters=0)
    made_stores.batches(new, {})
    with made_stores.opened(new) as db:
        db.execute("DELETE FROM dataset")
    assert rows(new)[0] == 3 and "no DataLoader with an index sampler" in rows(new)[2]
    assert rows(tmp_path / "none")[0] == 3
    with made_stores.opened(new) as db:
        db.execute("INSERT INTO info VALUES('rows', 'off')")
    assert rows(new)[0] == 3 and "--redact" in rows(new)[2]


def test_a_step_that_is_not_kept(run, rows):
    code, _, err = rows(run, "--step", 6)
    assert code == 3 and "no rows of step 6; those of steps 0 to 8 are kept" in err


def test_no_bad_step_writes_no_list(tmp_path, rows):
    folder = made_stores.run(tmp_path / "run-1", steps=3, parameters=0)
    made_stores.batches(folder, {0: (None, [1])})
    code, out, err = rows(folder, "--skip-list", tmp_path / "skip.jsonl")
    assert code == 0 and "no step with an alarm or a spike has rows" in out and "nothing is written" in err
    assert not (tmp_path / "skip.jsonl").exists()


@pytest.mark.parametrize("words", [["--stp", "3"], ["--step", "x"], ["--step"], ["a", "b"]])
def test_wrong_words_are_usage_errors(rows, words):
    code, out, err = rows(*words)
    assert code == 2 and out == "" and "usage: finitude rows" in err


def test_a_list_that_cannot_be_written(run, rows, tmp_path):
    code, _, err = rows(run, "--skip-list", tmp_path / "no" / "skip.jsonl")
    assert code == 4 and "cannot write" in err


def test_ranks_are_named(tmp_path, rows):
    for rank in (0, 1):
        folder = made_stores.run(tmp_path / "run" / f"rank-{rank}", steps=3, parameters=0)
        made_stores.batches(folder, {0: ("alarm", [rank, 9])})
        with made_stores.opened(folder) as db:
            db.execute("UPDATE info SET value = ? WHERE key = 'rank'", (str(rank),))
    out = rows(tmp_path / "run")[1]
    assert "rank 1, step 0, AdamW: alarm" in out and "row 9 of Texts (500 rows): in 2 of 2 bad steps" in out


def test_varints_are_read_as_written():
    ids = [random.Random(3).randrange(-(2**40), 2**40) for _ in range(500)] + [0, -1, 2**62, -(2**62)]
    assert reader._ids(made_stores.varints(ids)) == ids


@pytest.mark.parametrize(
    "data", [b"\xff" * 10 + b"\x01", b"\x01" * 5000, "text", None], ids=["long", "many", "text", "none"]
)
def test_damaged_rows_are_refused(run, rows, data):
    with made_stores.opened(run) as db:
        db.execute("UPDATE batch SET ids = ? WHERE step = 3", (data,))
    code, out, err = rows(run)
    assert (code, out) == (3, "") and "rows" in err, err


def test_a_view_is_no_table(run, rows):
    with made_stores.opened(run) as db:
        db.executescript("ALTER TABLE batch RENAME TO b; CREATE VIEW batch AS SELECT * FROM b;")
    assert rows(run)[0] == 3
