"""Each function of ours that runs from a bad step on is made to raise, one in each run. Whatever it is: no bad step is
applied, the next one is left out too, the exit code is what the policy says, the report is there and names the
failure."""

import random

import pytest

import failure_sweep as sweep

SEED = 20
SAMPLE = 24  # the others: test_each_of_them_fails, of make test-thorough
ERRORS = ("ZeroDivisionError", "MemoryError", "RecursionError")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return sweep.functions(folder, "--on-alarm", "skip"), sweep.plain(folder)


def _broken(folder, function, error, policy, out):
    """What was wrong with how that run ended, and whether the report names the failure."""
    got = sweep.broken(folder, function, error, "--on-alarm", policy)
    wrong = sweep.faults(got, out, policy)
    return wrong and (function, error, wrong, got.text()), any("swept" in one["text"] for one in got.report["failures"])


def _check(folder, function, error, policy, out):
    wrong, is_named = _broken(folder, function, error, policy, out)
    assert not wrong, wrong
    return is_named


def test_the_functions_are_found(found):
    functions, out = found
    assert len(functions) > 300 and out.startswith("ended"), len(functions)
    files = {name.partition(":")[0] for name in functions}
    assert {
        "session/session.py",
        "session/decision.py",
        "rerun/rewind.py",
        "report/incident.py",
        "capsules/capsule.py",
        "report/document.py",
    } <= files


def test_each_sampled_internal_failure_is_survived(found, tmp_path):
    functions, out = found
    chosen = random.Random(SEED).sample(functions, SAMPLE)
    named = [
        _check(tmp_path, one, ERRORS[k % len(ERRORS)], "stop" if k % 4 == 3 else "skip", out)
        for k, one in enumerate(chosen)
    ]
    assert sum(named) > SAMPLE // 2, list(zip(chosen, named))


# Those without which no alarm would be explained, decided or written.
NEEDED = [
    "session/windows.py:judge",
    "session/decision.py:act",
    "session/decision.py:conclude",
    "rerun/way.py:climb",
    "rerun/rewind.py:begin",
    "report/document.py:write",
    "report/document.py:document",
    "program/optimizer_members.py:names",
    # What a second run needs undone, where it fails as it begins; the veto; the handlers of the program.
    "rerun/isolation.py:__init__",
    "program/step_wrapper.py:leave_out",
    "program/signals.py:hold",
    "session/failures.py:begin",
]


@pytest.mark.parametrize("place", NEEDED)
def test_the_pillars_fail(found, tmp_path, place):
    functions, out = found
    path, _, name = place.partition(":")
    one = next(f for f in functions if f.startswith(path) and f.endswith(f":{name}"))
    assert _check(tmp_path, one, ERRORS[len(name) % len(ERRORS)], "skip", out), one


@pytest.mark.thorough
@pytest.mark.parametrize("error", ERRORS)
def test_each_of_them_fails(found, tmp_path, error):
    functions, out = found
    found = {one: _broken(tmp_path, one, error, "skip", out) for one in functions}
    wrong = [f"{what[0]}: {', '.join(what[2])}" for what, _ in found.values() if what]
    assert not wrong, "\n".join(wrong)
    silent = [one for one, (_, is_named) in found.items() if not is_named]
    assert len(silent) < len(functions) // 5, silent
