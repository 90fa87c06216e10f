"""The overhead harness: what it may say of a cell, that off is off, and that its meter counts what runs."""

import json
import pathlib
import re
import sys
import textwrap

import pytest

import helpers

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from bench.overhead import cells, page, stats  # noqa: E402
from bench.overhead.__main__ import MALLOC  # noqa: E402
from bench.warnings.__main__ import ABOUT  # noqa: E402

pytestmark = pytest.mark.slow  # they train in processes of their own


def _estimate(low, value, high):
    return stats.Estimate(value, low, high, 20)


@pytest.mark.parametrize(
    "component, paired, limit, verdict",
    [
        (0.4, (-0.2, 0.4, 1.0), 1.0, "holds"),
        (1.1, (0.9, 1.1, 1.3), 1.0, "missed"),  # the pieces alone are too much
        (0.4, (2.0, 2.5, 3.0), 1.0, "missed"),  # the pairs show what the pieces do not explain
        (0.4, (-3.0, 0.3, 3.0), 1.0, "undecided"),  # noise
        (0.4, (-9.0, -5.0, 1.95), 1.0, "undecided"),  # a faster step is noise too, and does not buy anything
        (0.4, (float("-inf"), 0.4, float("inf")), 1.0, "undecided"),
        (0.4, (-0.2, 0.4, float("nan")), 1.0, "undecided"),
        (3.0, (2.0, 3.0, 4.0), None, "-"),
        (3.0, (-9.0, 3.0, 40.0), None, "undecided"),
    ],
)
def test_noise_is_never_passed(component, paired, limit, verdict):
    assert stats.judge(_estimate(component, component, component), _estimate(*paired), limit) == verdict


def test_a_cell_without_pieces_is_undecided():
    assert stats.judge(None, _estimate(0, 0, 0), 1.0) == "undecided"


@pytest.mark.parametrize(
    "step_ns, rows, fused, limit",
    [(5e5, 8, False, None), (5e6, 64, False, 1.0), (5e6, 64, True, 2.0), (5e6, 512, True, 1.0)],
)
def test_exception_requires_few_rows_and_fused_optimizer(step_ns, rows, fused, limit):
    assert stats.limit_of(step_ns, rows, fused) == limit


def test_an_interval_holds_its_median_and_shrinks():
    few, many = stats.median_of([1, 2, 3, 4, 5]), stats.median_of([1, 2, 3, 4, 5] * 40)
    assert few.low <= few.value <= few.high
    assert many.high - many.low < few.high - few.low
    assert stats.median_of([7]).high == float("inf") and stats.median_of([]) is None


@pytest.mark.parametrize("mode, seconds", [(cells.full, 25 * 60), (cells.quick, 180)])
def test_the_budget_fits(mode, seconds):
    found = mode()
    assert len({c.name for c in found}) == len(found)
    scale = cells.scale_for(found, seconds - 15)
    assert sum(c.seconds * scale + cells.START_SECONDS for c in found) <= seconds and scale > 0.3


def _worker(tmp_path, **spec):
    """What a worker measures; forked from a process that has imported torch, as all runs of the tests."""
    spec = {"kind": "tiny", "optimizer": "adamw", "threads": 1, "seconds": 0.3, "folder": str(tmp_path), **spec}
    done = helpers.plain(tmp_path, ROOT / "bench/overhead/worker.py", json.dumps(spec), env=MALLOC)
    assert done.code == 0, done.text()
    return json.loads(done.out.strip().splitlines()[-1])


def _passes(tmp_path, code):
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(code)}"
    done = helpers.plain(tmp_path, helpers.write_script(tmp_path, text, "code.py").name, tmp_path, env=MALLOC)
    assert done.code == 0, done.text()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    return {
        "tiny-loader": _worker(folder, measure="overhead"),
        "tiny-list": _worker(folder, measure="overhead", loader=False),
        "compare-mlp-1": _worker(folder, measure="compare"),
    }


def test_every_step_under_watch_was_watched_and_metered(measured):
    result = measured["tiny-loader"]
    assert not result["watched"]["failure"] and result["watched"]["alarms"] == 0 and result["watched"]["steps"] > 0
    assert 1 <= len(result["pieces"]) <= len(result["cpu"]["metered"])
    for one in result["pieces"]:
        calls = {piece: n for piece, (_, n) in one.items()}
        assert calls["loss"] == calls["ring"] == calls["frames"] == calls["buffers"] == 1
        # At the step and after each batch; a new epoch adds two.
        assert 1.5 < calls["rng"] < 2.5 and calls["written"] == calls["undo"] == 0
        assert all(ns > 0 for piece, (ns, n) in one.items() if n), one
    assert all(calls["rng"][1] == 1 for calls in measured["tiny-list"]["pieces"])


def test_the_pieces_are_not_more_than_the_step(measured):
    result = measured["tiny-loader"]
    pieces = stats.in_place(result, stats.GATE + stats.REWIND)
    assert 0 < pieces.value < stats.median_of(result["cpu"]["metered"]).value


def test_the_arm_of_tape_every_records_its_share(measured, tmp_path):
    ratios = {
        arm: stats.pair_ratio(measured["compare-mlp-1"]["cpu"][arm], measured["compare-mlp-1"]["cpu"]["off"]).value
        for arm in ("tape", "tape-every")
    }
    assert all(0.5 < ratio < 10 for ratio in ratios.values()), ratios
    code = """
        import pathlib, sys
        from bench.overhead import arms, models, worker
        job = models.Job("tiny", "adamw")
        finitude = arms.Finitude(job, pathlib.Path(sys.argv[1]))
        worker.warm_up(job, seconds=0)
        arm, recorded = arms.TapeEvery(finitude, 10), []
        arm.begin = lambda x, y: recorded.append(finitude.native.tape_on())
        turns = worker.Turns({"tape-every": arm}, 0, 3, 0)
        turns.plan(50e6)     # a stretch of the others would have few steps
        worker.train(job, turns)
        steps = len(recorded) // 3
        assert arm.steps % 10 == 0 and steps == turns.warm + arm.steps, (steps, arm.steps)
        for stretch in range(3):
            timed = recorded[stretch * steps + turns.warm:(stretch + 1) * steps]
            assert sum(timed) == arm.steps // 10, (turns.warm, recorded)
        assert not finitude.native.tape_on()
        finitude.off()
        """
    _passes(tmp_path, code)


def test_the_gate_alone_keeps_nothing_for_a_rewind(tmp_path):
    code = """
        import pathlib, sys
        from bench.overhead import arms, models, worker
        job = models.Job("tiny", "adamw")
        finitude = arms.Finitude(job, pathlib.Path(sys.argv[1]))
        worker.warm_up(job, seconds=0)
        finitude.on()
        worker.warm_up(job, seconds=0)  # the first steps set things up
        finitude.off()
        finitude.on(gate_only=True)
        finitude.native.meter_start()
        worker.warm_up(job, seconds=0)
        finitude.native.meter_lap(False)
        laps, pieces = finitude.native.meter_stop()
        assert laps == 1 and pieces["ring"][1] > 0 and not any(pieces[p][1] for p in ("rng", "buffers", "frames")), pieces
        assert finitude.native.rewind_way(job.optimizer, 0)[0] is not None
        worker.warm_up(job, seconds=0)  # stopped, the meter counts no more
        again = finitude.native.meter_stop()[1]
        assert [n for _, n in again.values()] == [n for _, n in pieces.values()], again
        finitude.off()
        """
    _passes(tmp_path, code)


def test_what_is_left_after_switching_off_is_found(tmp_path):
    code = """
        import pathlib, sys, torch
        from bench.overhead import arms, models
        finitude = arms.Finitude(models.Job("tiny", "adamw"), pathlib.Path(sys.argv[1]))
        finitude.on()
        finitude.off()
        torch.autograd._engine_run_backward = finitude.native.engine_run_backward
        try:
            finitude.check_off()
        except arms.NotOff as e:
            assert "backward" in str(e), e
        else:
            sys.exit("not found")
        """
    _passes(tmp_path, code)


def test_unpromised_miss_is_also_broken_down(measured):
    slow = {**measured["tiny-loader"], "cold_page_ns": 300.0}
    slow["cpu"] = {**slow["cpu"], "on": [2 * t for t in slow["cpu"]["off"]]}
    text, missed = page.write({"own-mlp-adamw-1": slow, "tiny-loader": slow}, {}, [], ["made by `make it`"], "full")
    assert "takes 300 ns" in text and "cold pages" in text and missed


def test_the_page_is_made_of_the_results(measured):
    results = {**measured, "own-mlp-adamw-1": measured["tiny-loader"]}
    text, missed = page.write(
        results,
        {"own-lstm-sgd-1": "exit code 1: why"},
        [*results, "own-lstm-sgd-1", "tiny-x"],
        ["made by `make it`"],
        "full",
    )
    assert (
        "Cell own-lstm-sgd-1 failed: exit code 1: why" in text and "own-lstm-sgd-1 failed: exit code 1: why" in missed
    )
    assert "Not measured in this run: tiny-x." in text and "`make it`" in text
    step = stats.median_of(measured["tiny-list"]["cpu"]["off"]).value / 1e3
    assert re.search(rf"\| a list of batches \| {step:.0f} \|", text)
    for contender in ("finitude", "isfinite", "set_detect_anomaly", "every op", "--level trace"):
        assert contender in text


@pytest.mark.thorough
def test_each_piece_is_timed_by_itself():
    """The page of the pieces is made of what a process of its own has timed."""
    from bench.pieces import __main__ as pieces, jumps

    found = pieces.by_itself("tiny")
    for name, get, _part, _text in pieces.BUDGET:
        assert get(found[0])[0] >= 0, name
    assert found[1] and found[2]["parameters"] == 4 and found[3] > 0
    trials = pieces.in_a_process(jumps.measure)
    assert [name for name, _own, _rest in trials] == [name for name, *_ in jumps.TRIALS[1:]]
    assert all(own > 0 for _name, own, _rest in trials), trials


def test_page_of_warnings_begins_as_its_bench_writes_it():
    """Else the next measurement would drop what was added to the page alone."""
    assert (ROOT / "docs" / "warnings.md").read_text().startswith(ABOUT)
