"""A snapshot prolongs no life that matters, names what it lost, and leaks nothing."""

import gc
import itertools
import sys
import weakref

import pytest

from frames_support import Run, Tensor, built, native  # noqa: F401

pytestmark = pytest.mark.fast


class Big:
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t(),
        lambda t: [t(), t()],
        lambda t: {"a": t()},
        lambda t: (1, t()),
        lambda t: [[t()]],
        lambda t: lambda x=t(): x,
        lambda t: (lambda x: lambda: x)(t()),
        lambda t: iter([t()]),
        lambda t: enumerate((t(),)),
        lambda t: zip([t()], [1]),
    ],
)
@pytest.mark.parametrize("base", [Tensor, Big])
def test_prolongs_no_life(native, make, base):
    living = []

    class Watched(base):
        def __init__(self):
            super().__init__()
            living.append(1)

        def __del__(self):
            living.pop()

    if base is Big and type(make(Watched)) is not Watched:
        return  # inside a container only tensors are looked for
    snapshot = native.make()
    for _ in range(3):
        value = make(Watched)
        assert living
        native.take(snapshot)
        value = None  # noqa: F841
        assert not living


def test_a_generator_ends_when_it_is_dropped(native):
    snapshot, ended = native.make(), []

    def batches():
        try:
            for i in range(10):
                yield i
        finally:
            ended.append(i)

    for _, x in enumerate(zip(batches(), range(20))):
        native.take(snapshot)
        if x[0] == 3:
            break
    assert ended == [3]


def lost_names(built, function, veto=1):
    state = [0, [], [], None]
    snapshot = built[0].make()
    function(built[1]["Stepper"](built[0], snapshot, veto, state).step, state[2])
    return state


def test_dead_values_are_left_unset_and_named(built):
    def loop(step, log):
        for i in range(3):
            data, loss = Tensor(i, leaf=True), Tensor(i)
            losses = [loss]
            log.append((i, data.value))
            step()
            try:
                log.append(("tail", i, data.value, loss.value, losses[0].value))
            except UnboundLocalError:
                log.append(("tail", i, data.value, "lost"))

    state = lost_names(built, loop)
    restored, why, unset = state[3]
    assert restored, why
    assert sorted(unset) == ["loss", "losses"]
    assert state[2] == [
        (0, 0),
        ("tail", 0, 0, 0, 0),
        (1, 1),
        ("tail", 0, 0, "lost"),
        (1, 1),
        ("tail", 1, 1, 1, 1),
        (2, 2),
        ("tail", 2, 2, 2, 2),
    ]


def test_stand_in_replaces_a_dead_value(built):
    seen = []

    def loop(step, log):
        for i in range(3):
            loss = Tensor(i)
            loss.equal = f"value {i}"
            seen.append(weakref.ref(loss))
            step()
            log.append(getattr(loss, "value", loss))
            del loss
            assert seen[-1]() is None

    state = lost_names(built, loop)
    assert state[3] == (True, "", [])
    assert state[2] == [0, "value 0", 1, 2]


def test_a_container_of_parameters_is_known_again(built):
    def loop(step, log):
        params = [Tensor(k) for k in range(5)]
        table = {"params": params}
        for i in range(3):
            step()
            log.append((i, len(params), params[0].value, table["params"] is params))

    state = lost_names(built, loop)
    assert state[3] == (True, "", [])
    assert state[2] == [(0, 5, 0, True), (0, 5, 0, True), (1, 5, 0, True), (2, 5, 0, True)]


def test_any_use_of_a_lost_value_raises(built):
    raised = []

    def loop(step, log):
        for i in range(3):
            loss = Tensor(i)
            step()
            for use in (lambda x: x.item(), lambda x: bool(x), lambda x: str(x), lambda x: list(x)):
                try:
                    use(loss)
                except UnboundLocalError:
                    raised.append(i)
                except (AttributeError, TypeError):
                    pass

    state = lost_names(built, loop)
    assert state[3][0] and state[3][2] == ["loss"]
    assert raised == [0, 0, 0, 0]


def test_counts_of_references_stay_level(native):
    class Watched:
        pass

    objects = [Watched(), Tensor(leaf=True), Tensor(), [1, 2, 3], {"a": 1}, (10**40,), object(), lambda: 3, 10**30]
    objects[2].equal = objects[0]
    a, b, c, d, e, f, g, h, k = objects
    snapshot = native.make()

    def generate():
        for i in range(3):
            yield from zip([i], enumerate([i + 10**20]))

    def many(count):
        running = generate()
        next(running)
        endless, big = itertools.count(10**25), iter(range(10**25, 10**26))
        for _ in range(count):
            for _, _ in zip(running and [1], {"k": 2}.items()):
                x = next(endless), next(big)  # noqa: F841
                native.take(snapshot)

    many(10)
    native.clear(snapshot)
    gc.collect()
    before, tracked = [sys.getrefcount(o) for o in objects], len(gc.get_objects())
    many(10_000)
    native.clear(snapshot)
    gc.collect()
    assert [sys.getrefcount(o) for o in objects] == before
    assert abs(len(gc.get_objects()) - tracked) < 50


def test_restoring_leaks_nothing(built):
    def loop(step, log):
        keep, x = [1, 2], (10**30,)
        for i, (y, z) in enumerate(zip([5, 6, 7], iter(range(10**25, 10**25 + 3)))):
            x = (z, y)
            step()
        return x, keep

    for _ in range(20):
        Run(built, loop, 1, False)
    gc.collect()
    tracked = len(gc.get_objects())
    for _ in range(300):
        Run(built, loop, 2, False)
    gc.collect()
    assert abs(len(gc.get_objects()) - tracked) < 50
