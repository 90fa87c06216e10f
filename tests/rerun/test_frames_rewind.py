"""Rewind by return: a loop is vetoed at each of its steps in turn, and must run on as if it had not been."""

import asyncio
import runpy
import sys

import pytest

from frames_loops import LOOPS, closures, deep_stack, for_enumerate, local_iterator, try_and_with
from frames_support import Run, built, expect_rewound  # noqa: F401

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("direct", [False, True], ids=["through Python", "straight into C"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_runs_on_as_the_first_time(built, loop, direct):
    clean = Run(built, loop, -1, direct)
    assert clean.state[0] >= 3
    for veto in range(1, clean.state[0]):
        expect_rewound(clean, Run(built, loop, veto, direct), veto)


@pytest.mark.parametrize(
    "loop", [for_enumerate, try_and_with, closures, local_iterator, deep_stack], ids=lambda loop: loop.__name__
)
def test_under_a_tracer(built, loop):
    def trace(frame, event, argument):
        frame.f_locals  # what a debugger reads
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        clean = Run(built, loop, -1, False)
        runs = [Run(built, loop, veto, False) for veto in (1, 2)]
    finally:
        sys.settrace(before)
    for veto, run in enumerate(runs, 1):
        expect_rewound(clean, run, veto)


def test_in_a_coroutine_it_goes_back_or_refuses(built):
    def loop(step, log):
        async def batch(i):
            await asyncio.sleep(0)
            return i * 2

        async def train():
            for i in range(4):
                x = await batch(i)
                log.append(("body", i, x))
                step()
                log.append(("tail", i, x))
            return x

        return asyncio.run(train())

    clean = Run(built, loop, -1, False)
    for veto in (1, 2, 3):
        run = Run(built, loop, veto, False)
        if run.restored:
            expect_rewound(clean, run, veto)
        else:
            assert run.reason and run.log == clean.log and run.result == clean.result


MODULE = """
import math
total, history = 0, ()
for epoch in range(2):
    for i, x in enumerate((1, 2, 3)):
        total += x
        if total > 3:
            late = total
        log.append((epoch, i, x, total, "late" in globals()))
        step()
        history += (math.floor(total),)
        log.append(history)
"""


@pytest.mark.parametrize("how", ["runpy", "exec"])
def test_module_level_script(built, how):
    native, names, folder = built
    script = folder / "script.py"
    script.write_text(MODULE)

    def run(veto):
        state = [0, [], [], None]
        snapshot = native.make()
        given = {"step": names["Stepper"](native, snapshot, veto, state).step, "log": state[2]}
        if how == "runpy":
            made = runpy.run_path(str(script), init_globals=given)
        else:
            made = dict(given)
            exec(compile(MODULE, str(script), "exec"), made)
        native.clear(snapshot)
        return state, {name: made[name] for name in ("total", "history", "epoch", "i", "x", "late")}

    clean, result = run(-1)
    for veto in range(1, clean[0]):
        state, again = run(veto)
        assert state[3][0], state[3][1]
        assert state[2] == clean[2][: clean[1][veto]] + clean[2][clean[1][veto - 1] :]
        assert again == result
