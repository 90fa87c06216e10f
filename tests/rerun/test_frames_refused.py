"""What cannot be rewound is refused with a reason, and the loop then runs on untouched."""

import itertools
import sys
import threading
from functools import reduce

import pytest

from frames_support import Run, build, built, expect_rewound, native  # noqa: F401

pytestmark = pytest.mark.fast


def two_sites(step, log):
    for i in range(3):
        step()
        log.append(("first", i))
        step()
        log.append(("second", i))


def two_yields(step, log):
    def pairs():
        for i in range(3):
            yield "even", i
            yield "odd", i

    for kind, i in pairs():
        step()
        log.append((kind, i))


def over_file(step, log):
    with open(__file__) as lines:
        for line in itertools.islice(lines, 3):
            step()
            log.append(line)


def with_reduce(step, log):
    def fold(total, x):
        step()
        log.append(x)
        return total + x

    return reduce(fold, [1, 2, 3, 4])


def with_sorted(step, log):
    def key(x):
        step()
        log.append(x)
        return -x

    return sorted([3, 1, 2], key=key)


def with_filter(step, log):
    def wanted(x):
        step()
        log.append(x)
        return True

    for x in filter(wanted, [3, 1, 2]):
        log.append(x)


def listed(step, log):
    def train(x):
        step()
        log.append(x)

    return list(map(train, [1, 2, 3]))


def sorted_after_drawing(step, log):
    """Its iterator has ended before the first call: where it stands says nothing."""

    def key(x):
        step()
        log.append(x)
        return -x

    return sorted(iter([3, 1, 2]), key=key)


def driven(step, log):
    def train(x):
        step()
        log.append(x)

    build()[1]["drive"](train, [1, 2, 3])


def own_iterator_class(step, log):
    class Count:
        at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            if self.at > 3:
                raise StopIteration
            return self.at

    for x in Count():
        step()
        log.append(x)


def growing_list(step, log):
    work = [1]
    for x in work:
        work.append(x + 1)
        step()
        log.append(x)
        if x == 4:
            break


def local_generator_over_file(step, log):
    def lines():
        with open(__file__) as source:
            for number, line in enumerate(source):
                yield number, line

    reader = lines()
    for i in range(3):
        number, line = next(reader)
        step()
        log.append(number)


REFUSED = [
    (two_yields, "is at"),
    (over_file, "_io.TextIOWrapper"),
    (with_reduce, "reduce"),
    (with_sorted, "sorted"),
    (with_filter, "filter"),
    (listed, "list"),
    (sorted_after_drawing, "sorted"),
    (driven, "outside the user's code has moved on"),
    (own_iterator_class, "Count"),
    (growing_list, "has changed"),
    (local_generator_over_file, "_io.TextIOWrapper"),
]


@pytest.mark.parametrize("loop,reason", REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_refuses_with_a_reason(built, loop, reason):
    clean = Run(built, loop, -1, False)
    for veto in range(1, clean.state[0]):
        run = Run(built, loop, veto, False)
        assert not run.restored and reason in run.reason, (veto, run.reason)
        assert run.log == clean.log and run.result == clean.result


def within_a_value(step, log):
    """Steps of one call: what runs them all stands at the same value."""

    def train(x, y):
        for i in range(3):
            step()
            log.append((x, y, i))
        return x

    results = []
    results.extend(map(train, [1, 2], enumerate("ab")))
    return results, list(map(train, (3, 4), zip(range(2), "cd")))


@pytest.mark.parametrize("direct", [False, True], ids=["through Python", "straight into C"])
def test_rewind_stays_within_the_call_for_one_value(built, direct):
    """Not from one value of a map to the one before: what list() has collected by then cannot be taken out of it."""
    clean = Run(built, within_a_value, -1, direct)
    assert clean.state[0] == 12
    for veto in range(1, clean.state[0]):
        run = Run(built, within_a_value, veto, direct)
        if veto % 3:
            expect_rewound(clean, run, veto)
        else:
            assert not run.restored, veto
            assert run.log == clean.log and run.result == clean.result


@pytest.mark.parametrize("direct", [False, True], ids=["from Python", "from C"])
def test_another_call_of_the_same_function(built, direct):
    """Where a frame is known to be at which call (CPython 3.11 and later, calls of Python functions), it goes
    back to the other one."""
    clean = Run(built, two_sites, -1, direct)
    for veto in range(1, clean.state[0]):
        run = Run(built, two_sites, veto, direct)
        if sys.version_info >= (3, 11) and not direct:
            expect_rewound(clean, run, veto)
            continue
        assert not run.restored and "instead of test_frames_refused.py:" in run.reason, (veto, run.reason)
        assert run.log == clean.log and run.result == clean.result


def test_epoch_boundary_of_a_generator_is_refused(built):
    def loop(step, log):
        for epoch in range(2):
            for x in (v for v in (1, 2)):
                step()
                log.append((epoch, x))

    clean = Run(built, loop, -1, False)
    for veto, same_epoch in ((1, True), (2, False), (3, True)):
        run = Run(built, loop, veto, False)
        if same_epoch:
            expect_rewound(clean, run, veto)
        else:
            assert not run.restored and "has ended" in run.reason
            assert run.log == clean.log


def test_no_snapshot_and_no_user_code(native):
    snapshot = native.make()
    assert native.can_restore(snapshot) == (False, "no snapshot was taken")
    seen = []
    thread = threading.Thread(target=native.take, args=(snapshot,))
    thread.start()
    thread.join()
    seen.append(native.can_restore(snapshot))
    assert seen == [(False, "no user code is on the stack")]


def test_another_thread_is_refused(native):
    snapshot = native.make()

    def take_here():
        native.take(snapshot)

    thread = threading.Thread(target=take_here)
    thread.start()
    thread.join()
    assert native.can_restore(snapshot)[0] is False


def test_an_exception_that_is_set_stays_set(native):
    snapshot = native.make()
    for _ in range(3):
        try:
            raise KeyError("mine")
        except KeyError as error:
            native.take(snapshot)
            assert native.can_restore(snapshot)[1] != "out of memory"
            assert sys.exc_info()[1] is error
