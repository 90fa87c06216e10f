"""Training loops of every shape. Each writes what it does to `log`; its result is made of its own names."""
import itertools
import os
import threading
from functools import partial

import pytest
from frames_support import Loader, build


def for_range(step, log):
    total = 0
    for i in range(6):
        total += i
        log.append(("body", i, total))
        step()
        log.append(("tail", i, total))
    return total


def for_long_range(step, log):
    for i in range(1 << 70, (1 << 70) + 5, 2):
        step()
        log.append(i)
    return i


def while_prefetched(step, log):
    done, x = 0, "batch 0"
    while True:
        log.append(("forward", x))
        y = x + "!"
        x = f"batch {done + 1}"
        step()
        log.append(("tail", done, y))
        done += 1
        if done > 4:
            break
    return done, x, y


def for_enumerate(step, log):
    for i, name in enumerate(["a", "b", "c", "d"], 10):
        log.append((i, name))
        step()
    return i, name


def for_zip(step, log):
    out = 0
    for a, b in zip(range(5), ("p", "q", "r", "s", "t")):
        out = out * 2 + a
        step()
        log.append((a, b, out))
    return out


def nested_epochs(step, log):
    seen = 0
    for epoch in range(3):
        for i, x in enumerate([1, 2, 3]):
            seen += x
            log.append((epoch, i, x, seen))
            step()
        log.append(("end of epoch", epoch))
    return seen


def over_list(step, log):
    data = ["a", "b", "c"]
    for _ in range(2):
        for x in data:
            log.append(x)
            step()
    return x


def over_dict(step, log):
    table = {"lr": 1, "beta": 2, "eps": 3}
    for _ in range(2):
        for key, value in table.items():
            for name in reversed(list(table)):
                step()
                log.append((key, value, name))
    return key


def over_set(step, log):
    kinds = {1, 2, 3}
    for kind in kinds:
        step()
        log.append(kind)
    return len(kinds)


def over_builtin_iterators(step, log):
    for a in map(abs, [-1, -2]):
        for b in filter(None, [0, 1, 2]):
            for c in itertools.islice([7, 8, 9, 10], 1, 3):
                for d in itertools.chain("xy", b"z", "\u0105"):
                    step()
                    log.append((a, b, c, d))
    return a, b, c, d


def over_combinations(step, log):
    for a, b in itertools.product([1, 2], (3, 4)):
        for c in itertools.combinations("xyz", 2):
            for d in itertools.combinations_with_replacement("u", 2):
                step()
                log.append((a, b, c, d))
    return a, b, c, d


def over_ended_ones(step, log):
    for a, b, c in itertools.zip_longest(iter([1, 2, 3, 4]), iter("xy"), reversed((7, 8, 9)), fillvalue=0):
        step()
        log.append((a, b, c))
    return a, b, c


def over_chosen_ones(step, log):
    for a in itertools.starmap(max, [(1, 2), (4, 3)]):
        for b in itertools.takewhile(lambda v: v.islower(), "ab?"):
            for c in itertools.dropwhile(lambda v: v.islower(), "ab?!"):
                for d in itertools.filterfalse(lambda v: v.islower(), "?a!"):
                    for e in itertools.compress("xyz", [1, 0, 1]):
                        step()
                        log.append((a, b, c, d, e))
    return a, b, c, d, e


def over_pairs(step, log):
    for a, b in itertools.pairwise([1, 2, 3, 4]):
        step()
        log.append((a, b))
    return a, b


def over_item_access(step, log):
    class Old:
        def __getitem__(self, index):
            if index == 3:
                raise IndexError
            return index * 10

    for x in Old():
        step()
        log.append(x)
    return x


def over_count(step, log):
    for f in itertools.count(10 ** 30):
        for _ in itertools.repeat("x", 2):
            step()
            log.append(f)
        if f == 10 ** 30 + 2:
            return f


def over_cycle(step, log):
    for i, (a, b, _) in enumerate(zip(itertools.cycle([1, 2, 3]), itertools.cycle(iter("xy")), range(8))):
        step()
        log.append((i, a, b))
    return a, b


def generator_wrapper(step, log):
    def batches(count):
        seen = 0
        for i in range(count):
            seen += i
            yield i, seen

    for i, seen in batches(6):
        log.append((i, seen))
        step()
    return i, seen


def generator_of_generator(step, log):
    def inner():
        for x in [3, 4, 5, 6]:
            yield x

    def outer():
        with_index = enumerate(inner())
        yield from ((i, x) for i, x in with_index)

    last = None
    for pair in outer():
        step()
        log.append(pair)
        last = pair
    return last


def local_iterator(step, log):
    def forever(data):
        while True:
            for x in data:
                yield x

    endless, plain = forever([1, 2, 3]), iter(["a", "b", "c", "d", "e", "f"])
    for i in range(5):
        x, y = next(endless), next(plain)
        log.append((i, x, y))
        step()
    return x, y


def under_tqdm(step, log):
    tqdm = pytest.importorskip("tqdm").tqdm
    total = 0
    for i, x in enumerate(tqdm([4, 5, 6, 7], file=open(os.devnull, "w"))):
        total += x
        log.append((i, x))
        step()
    return total


def try_and_with(step, log):
    class Scope:
        def __init__(self, name):
            self.name, self.left = name, False

        def __enter__(self):
            return self

        def __exit__(self, *error):
            assert not self.left  # the one that was entered last is the one to be left
            self.left = True
            log.append(("leave", self.name))

    lock = threading.Lock()
    with Scope("all") as outer:
        for i in range(4):
            try:
                with lock, Scope("inner") as scope:
                    log.append(("body", i))
                    step()
                    log.append(("tail", i, outer.name, scope.left))
            except ValueError:
                log.append("never")
            finally:
                log.append(("finally", i))
    assert not lock.locked()
    return i


def closures(step, log):
    count, trail = 0, ()

    def more(by):
        nonlocal count, trail
        count += by
        trail = (*trail, by)

    for i in range(5):
        more(i)
        show = lambda: (i, count)  # noqa: E731
        log.append(show())
        step()
        log.append((i, count, trail))
    return count, trail


class Trainer:
    def __init__(self, step, log):
        self.apply, self.log = step, log

    def fit(self, epochs):
        for epoch in range(epochs):
            self.epoch(epoch, size=2)
        return epoch

    def epoch(self, number, *, size):
        for i in range(size):
            self(number, i)

    def __call__(self, *where):
        a, b = where
        return self.update(a * 10 + b)

    def update(self, value):
        doubled = value * 2
        self.log.append(("before", value))
        self.apply()
        self.log.append(("after", value, doubled))


def deep_stack(step, log):
    return Trainer(step, log).fit(3)


def recursion(step, log):
    def descend(depth):
        before = depth * 7
        if depth == 0:
            for leaf in (1, 2):
                step()
                log.append(("leaf", leaf))
            return 1
        count = 0
        for side in range(2):
            count += descend(depth - 1)
            log.append((depth, side, before))
        return count

    return descend(3)


def decorated(step, log):
    @build()[1]["no_grad"]
    def train(i, scale=1.0):
        value = i * scale
        step()
        log.append(value)

    for i in range(4):
        train(i, scale=0.5)
    return i


def through_partial(step, log):
    def train(offset, i):
        step()
        log.append(offset + i)

    call = partial(train, 100)
    for i in range(4):
        call(i)
    return i


def inside_generator(step, log):
    def training():
        for i in range(4):
            step()
            log.append(("trained", i))
            yield i

    for last in training():
        log.append(("got", last))
    return last


def enumerated_generator(step, log):
    def training():
        for i in range(4):
            step()
            log.append(("trained", i))
            yield i

    for i, loss in enumerate(training()):
        log.append((i, loss))
    return i, loss


def drawn_by_a_builtin(step, log):
    def training():
        for i in range(4):
            step()
            log.append(("trained", i))
            yield i

    return list(training())[-1]


def mapped(step, log):
    def train(x):
        step()
        log.append(x)
        return x * 2

    for y in map(train, [1, 2, 3]):
        log.append(y)
    return y


def comprehension(step, log):
    def train(x):
        step()
        log.append(x)
        return x

    return [train(x + y) for x, y in zip(range(3), [5, 6, 7])][-1]


def star_call(step, log):
    def train(*values, **more):
        step()
        log.append((values, tuple(more.items())))

    for i in range(4):
        train(*(i, i + 1), **{"k": i})
    return i


def argument_first(step, log):
    def pair(a, b):
        return a, b

    for i in range(4):
        log.append(pair(f"value {i * 1000}", step()))
    return i


def unbound_name(step, log):
    for i in range(4):
        step()
        try:
            log.append(late)
        except UnboundLocalError:
            log.append("unbound")
        if i > 0:
            late = i
    del i
    return late


def external_loader(step, log):
    loader, total = Loader([1, 2, 3, 4]), 0
    for i, x in enumerate(loader):
        if log and log[-1] == "rewound":
            log.pop()
        total += 1
        step()
        loader.at = i + 1  # the owner's part
        log.append(i)
    return total


LOOPS = [
    for_range, for_long_range, while_prefetched, for_enumerate, for_zip, nested_epochs, over_list, over_dict,
    over_set, over_builtin_iterators, over_combinations, over_ended_ones, over_chosen_ones, over_pairs,
    over_item_access, over_count, over_cycle, generator_wrapper, generator_of_generator,
    local_iterator, under_tqdm, try_and_with, closures, deep_stack, recursion, decorated, through_partial,
    inside_generator, enumerated_generator, drawn_by_a_builtin, mapped, comprehension, star_call,
    argument_first, unbound_name, external_loader]
