"""bench/overhead/regress.py without its clock: what it says of overheads that are made up, and what it builds from."""

import os
import pathlib
import random
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from bench.overhead import regress, stats  # noqa: E402

CELLS = {"tiny": {"kind": "tiny"}, "mlp": {"kind": "mlp"}}


def _compare(tree, noise=0.05, rounds=8, seed=3):
    """Verdicts where the overheads of base are 1 point and 2 us, and `tree` adds (points, us) by cell. A round is slow
    or fast as a whole, as a machine has its moments."""
    rng = random.Random(seed)
    moments = [rng.uniform(0, 5) for _ in range(rounds)]

    def run(name, spec, number):
        more = tree.get(spec["kind"], (0, 0)) if name == "tree" else (0, 0)
        return tuple(plain + moments[number] + extra + rng.gauss(0, noise) for plain, extra in zip((1, 2), more))

    lines = []
    verdicts = regress.compare(CELLS, run, rounds, lines.append)
    assert len(lines) == 1 + len(CELLS) and all(verdict in line for verdict, line in zip(verdicts.values(), lines[1:]))
    return verdicts


@pytest.mark.parametrize("seed", range(5))
def test_only_a_slower_piece_is_called_worse(seed):
    assert _compare({"mlp": (0.8, 0.9)}, seed=seed) == {"tiny": "not worse", "mlp": "worse"}
    assert _compare({}, seed=seed) == {"tiny": "not worse", "mlp": "not worse"}
    assert _compare({"tiny": (-0.8, -0.9)}, seed=seed) == {"tiny": "not worse", "mlp": "not worse"}


def test_worse_requires_both_points_and_time():
    assert _compare({"tiny": (5.0, 0.1), "mlp": (0.1, 50.0)}) == {"tiny": "not worse", "mlp": "not worse"}


def test_what_noise_leaves_open_is_neither():
    verdicts = _compare({"mlp": (3.0, 3.0)}, noise=20)
    assert verdicts["mlp"] == "undecided"
    assert (
        regress.compare(CELLS, lambda name, spec, number: (1.0, 1.0), 1, lambda line: None)["tiny"] == "undecided"
    )  # one round


@pytest.mark.parametrize(
    "verdicts, code",
    [
        (["not worse", "not worse"], 0),
        (["not worse", "worse"], 1),
        (["undecided", "worse"], 1),
        (["not worse", "undecided"], 3),
    ],
)
def test_the_exit_code_says_which(verdicts, code):
    assert regress.exit_code(dict(enumerate(verdicts))) == code


def test_pairs_of_a_round_run_in_both_orders():
    order = []
    regress.take_turns(lambda name, number: order.append((number, name)), 1, 30)
    assert [number for number, _ in order] == [n for n in range(30) for _ in range(2)]
    assert {tuple(name for _, name in order[i : i + 2]) for i in range(0, 60, 2)} == {
        ("base", "tree"),
        ("tree", "base"),
    }


def test_overhead_of_process_is_computed_from_its_pairs(monkeypatch):
    # Steps of 1 ms, then of 2 ms; 20 us more with the recorder on.
    result = {"cpu": {"off": [1e6] * 5 + [2e6] * 5, "on": [1.02e6] * 5 + [2.02e6] * 5}}
    asked = []
    monkeypatch.setattr(regress.overhead, "run_cell", lambda spec, timeout, env: (asked.append(env), (result, ""))[1])
    points, us = regress.process("somewhere", {"threads": 1, "seconds": 1})
    assert us == pytest.approx(20) and points == pytest.approx(1.5)
    assert asked[0]["PYTHONPATH"] == "somewhere"
    monkeypatch.setattr(regress.overhead, "run_cell", lambda spec, timeout, env: (None, "it died"))
    with pytest.raises(SystemExit, match="somewhere: it died"):
        regress.process("somewhere", {"threads": 1, "seconds": 1})


def test_the_limits_are_met_from_both_sides():
    def at(low, high):
        return stats.Estimate((low + high) / 2, low, high, 9)

    far = at(1, 2)
    assert regress.verdict(at(0.31, 1), far) == "worse" and regress.verdict(at(0.29, 1), far) == "undecided"
    assert regress.verdict(at(-1, 0.3), far) == "not worse" and regress.verdict(far, at(-1, 0.3)) == "not worse"


def test_working_tree_is_compared_with_the_committed_base(monkeypatch, tmp_path):
    here = tmp_path / "here"
    here.mkdir()

    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=here, check=True, capture_output=True
        )

    git("init", "-q")
    (here / "kept").write_text("then")
    (here / "gone").write_text("then")
    (here / ".gitignore").write_text("ignored\n")
    git("add", ".")
    git("commit", "-q", "-m", "then")
    (here / "kept").write_text("now")
    (here / "gone").unlink()
    (here / "folder").mkdir()
    (here / "folder/new").write_text("now")
    (here / "ignored").write_text("now")
    monkeypatch.setattr(regress, "ROOT", here)

    def bring():
        for name, revision in (("base", "HEAD"), ("tree", None)):
            regress.sources_of(revision, tmp_path / "out" / name)

    bring()
    read = {
        name: {
            str(p.relative_to(tmp_path / "out" / name)): p.read_text()
            for p in (tmp_path / "out" / name).rglob("*")
            if p.is_file() and p.name != ".gitignore"
        }
        for name in ("base", "tree")
    }
    assert read == {"base": {"kept": "then", "gone": "then"}, "tree": {"kept": "now", "folder/new": "now"}}

    # Brought again: what is the same keeps its time, or all would be built again; what is gone here goes there.
    files = [tmp_path / "out" / name / "kept" for name in ("base", "tree")]
    before = [os.utime(path, (1, 1)) or path.stat().st_mtime_ns for path in files]
    (here / "folder/new").unlink()
    bring()
    assert [path.stat().st_mtime_ns for path in files] == before and not (tmp_path / "out/tree/folder/new").exists()
    (here / "kept").write_text("later")
    bring()
    assert [path.read_text() for path in files] == ["then", "later"]


def test_a_cell_that_does_not_exist_is_said(capsys):
    with pytest.raises(SystemExit) as stopped:
        regress.main(["HEAD", "--only", "no such cell"])
    assert stopped.value.code == 2 and "tiny" in capsys.readouterr().err
