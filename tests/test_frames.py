"""Rewind by return: a loop is vetoed at each of its steps in turn, and must run on as if it had not been."""
import gc
import itertools
import os
import runpy
import subprocess
import sys
import sysconfig
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from shutil import which

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parent.parent
PARTS = [*(f"src/bindings/frames_{part}.cpp" for part in ("code", "values", "iterators", "memory", "python")),
         "tests/native/frames_test_module.cpp"]

# What an optimizer's step looks like from the user's side: a Python function outside the user's code.
LIBRARY = '''
class Stepper:
    def __init__(self, native, snapshot, veto, state):
        self.native, self.snapshot, self.veto, self.state = native, snapshot, veto, state

    def __call__(self):
        return self.step()

    def step(self):
        return self._inner()

    def _inner(self):
        self.native.hook(self.snapshot, self.veto, self.state)


def no_grad(function):
    def decorate_context(*args, **kwargs):
        with Quiet():
            return function(*args, **kwargs)
    return decorate_context


class Quiet:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class Module:
    def _call_impl(self, *args):
        def inner():
            return self.forward(*args)
        return inner()

    __call__ = _call_impl


def drive(function, values):
    results = []
    for value in values:
        results.append(function(value))
    return results
'''


class Tensor:
    """Stands in for torch.Tensor; `leaf` ones may be kept alive."""

    def __init__(self, value=0, leaf=False):
        self.value, self.leaf = value, leaf


class Loader:
    """An iterator whose position its owner sets back."""

    def __init__(self, values):
        self.values, self.at = list(values), 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.values):
            raise StopIteration
        self.at += 1
        return self.values[self.at - 1]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    compiler = os.environ.get("CXX") or which("g++-12") or which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    launcher = [which("ccache")] if which("ccache") else []
    flags = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'src'}",
             f"-I{sysconfig.get_paths()['include']}"]

    def build(part):
        out = folder / (Path(part).stem + ".o")
        subprocess.run([*launcher, compiler, *flags, "-c", str(ROOT / part), "-o", str(out)], check=True)
        return str(out)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, PARTS))
    library = folder / "frames_test_module.so"
    subprocess.run([compiler, "-shared", *objects, "-o", str(library)], check=True)
    loader = ExtensionFileLoader("frames_test_module", str(library))
    native = module_from_spec(spec_from_loader("frames_test_module", loader))
    loader.exec_module(native)
    (folder / "library").mkdir()
    source = folder / "library" / "stepper.py"
    source.write_text(LIBRARY)
    names = runpy.run_path(str(source))
    testers = [str(Path(sys.modules[name].__file__).parent) for name in ("pytest", "_pytest", "pluggy")]
    prefixes = (str(folder / "library"), sysconfig.get_paths()["stdlib"], *testers)
    native.init(prefixes, Tensor, (Loader,), (names["Module"]._call_impl.__code__,))
    return native, names, folder


@pytest.fixture(scope="session")
def native(built):
    return built[0]


# ---- loops; each writes what it does to `log` and returns a result made of its own names -------------------

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


def decorated(step, log, names):
    @names["no_grad"]
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
    over_set, over_builtin_iterators, over_item_access, over_count, generator_wrapper, generator_of_generator,
    local_iterator, under_tqdm, try_and_with, closures, deep_stack, recursion, decorated, through_partial, inside_generator,
    enumerated_generator, drawn_by_a_builtin, mapped, comprehension, star_call, argument_first, unbound_name,
    external_loader]


class Run:
    """One run of a loop, vetoed at step number `veto` (-1: never)."""

    def __init__(self, built, loop, veto, direct):
        native, names, _ = built
        self.log, self.marks = [], []
        self.state = [0, self.marks, self.log, None]
        snapshot = native.make()
        step = partial(native.hook, snapshot, veto, self.state)
        if not direct:
            step = names["Stepper"](native, snapshot, veto, self.state).step
        extra = (names,) if loop is decorated else ()
        self.result = loop(step, self.log, *extra)
        native.clear(snapshot)

    @property
    def restored(self):
        return self.state[3][0]

    @property
    def reason(self):
        return self.state[3][1]


def expect_rewound(clean, run, veto):
    assert run.restored, (veto, run.reason)
    again = clean.log[:clean.marks[veto]] + clean.log[clean.marks[veto - 1]:]
    assert run.log == again, veto
    assert run.result == clean.result, veto


@pytest.mark.parametrize("direct", [False, True], ids=["through Python", "straight into C"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_runs_on_as_the_first_time(built, loop, direct):
    clean = Run(built, loop, -1, direct)
    assert clean.state[0] >= 3
    for veto in range(1, clean.state[0]):
        expect_rewound(clean, Run(built, loop, veto, direct), veto)


@pytest.mark.parametrize("loop", [for_enumerate, try_and_with, closures, local_iterator, deep_stack],
                         ids=lambda loop: loop.__name__)
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
    import asyncio

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


MODULE = '''
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
'''


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
        assert state[2] == clean[2][:clean[1][veto]] + clean[2][clean[1][veto - 1]:]
        assert again == result


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


def driven(step, log, names):
    def train(x):
        step()
        log.append(x)

    names["drive"](train, [1, 2, 3])


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
    (two_sites, "instead of test_frames.py:"), (two_yields, "stands at"), (over_file, "_io.TextIOWrapper"),
    (with_reduce, "reduce"), (with_sorted, "sorted"), (with_filter, "filter"), (listed, "list"),
    (driven, "outside the user's code has moved on"), (own_iterator_class, "Count"),
    (growing_list, "has changed"), (local_generator_over_file, "_io.TextIOWrapper")]


@pytest.mark.parametrize("loop,reason", REFUSED, ids=lambda value: getattr(value, "__name__", None))
def test_refuses_with_a_reason(built, loop, reason):
    clean_loop = partial(loop, names=built[1]) if loop is driven else loop
    clean = Run(built, clean_loop, -1, False)
    for veto in range(1, clean.state[0]):
        run = Run(built, clean_loop, veto, False)
        assert not run.restored and reason in run.reason, (veto, run.reason)
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


# ---- what a snapshot keeps alive ---------------------------------------------------------------------------

class Big:
    pass


@pytest.mark.parametrize("make", [
    lambda t: t(), lambda t: [t(), t()], lambda t: {"a": t()}, lambda t: (1, t()), lambda t: [[t()]],
    lambda t: lambda x=t(): x, lambda t: (lambda x: lambda: x)(t()), lambda t: iter([t()]),
    lambda t: enumerate((t(),)), lambda t: zip([t()], [1])])
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
    assert state[2] == [(0, 0), ("tail", 0, 0, 0, 0), (1, 1), ("tail", 0, 0, "lost"), (1, 1),
                        ("tail", 1, 1, 1, 1), (2, 2), ("tail", 2, 2, 2, 2)]


def test_a_stand_in_takes_the_place_of_a_dead_value(built):
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


def test_using_a_lost_value_raises_whatever_is_done_with_it(built):
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

    objects = [Watched(), Tensor(leaf=True), Tensor(), [1, 2, 3], {"a": 1}, (10 ** 40,), object(), lambda: 3,
               10 ** 30]
    objects[2].equal = objects[0]
    a, b, c, d, e, f, g, h, k = objects
    snapshot = native.make()

    def generate():
        for i in range(3):
            yield from zip([i], enumerate([i + 10 ** 20]))

    def many(count):
        running = generate()
        next(running)
        endless, big = itertools.count(10 ** 25), iter(range(10 ** 25, 10 ** 26))
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
        keep, x = [1, 2], (10 ** 30,)
        for i, (y, z) in enumerate(zip([5, 6, 7], iter(range(10 ** 25, 10 ** 25 + 3)))):
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


# ---- where the user's code stands --------------------------------------------------------------------------

def test_depth_by_analysis_equals_the_interpreters(built):
    native, names, _ = built
    seen = []

    class Inner(names["Module"]):
        def forward(self, x):
            for _ in zip([1], [2]):
                with names["Quiet"](), names["Quiet"]():
                    seen.extend(native.both_depths())
            return x

    [list(map(Inner(), [1])) for _ in range(2)]
    known = [(function, said, computed) for function, said, computed in seen if said >= 0]
    assert len(seen) > 10 and all(said == computed for _, said, computed in known), known
    assert all(computed >= 0 for _, _, computed in seen)
    assert known or sys.version_info < (3, 11)


def test_user_stack_and_line(built):
    native, names, _ = built
    here = names["no_grad"]

    @here
    def inside():
        return native.stack(8), native.line()

    line = inside.__closure__[0].cell_contents.__code__.co_firstlineno + 2
    frames, (file, number, function) = inside()
    assert frames[0] == (os.path.abspath(__file__), line, "inside") == (file, number, function)
    assert frames[1][0] == os.path.abspath(__file__) and frames[1][2] == "test_user_stack_and_line"
    assert all("stepper.py" not in frame[0] for frame in frames)
    assert len(native.stack(1)) == 1


def test_module_selves(built):
    native, names, _ = built
    seen = []

    class Leaf(names["Module"]):
        def forward(self):
            seen.append(native.modules())

    class Root(names["Module"]):
        def __init__(self):
            self.leaf = Leaf()

        def forward(self):
            return self.leaf()

    root = Root()
    root()
    assert seen == [[root.leaf, root]]


def test_take_is_quick(native, capsys):
    names = {f"name_{i}": (i, str, os, for_range, 1.5 * i)[i % 5] for i in range(100)}
    out = {}

    def innermost(a, b, c):
        d, e, f = Big(), [1, 2], {"lr": 0.1}  # noqa: F841
        for _ in range(1):
            out["take"] = min(native.time_take(snapshot, 2000) for _ in range(20))
            out["stack"], out["ids"] = map(min, zip(*(native.time_stack(2000) for _ in range(20))))

    def middle(x):
        for i, (y, _) in enumerate(zip([1], [2])):
            innermost(i, y, x)

    def outer():
        middle(Big())

    snapshot = native.make()
    names["outer"] = outer
    thread = threading.Thread(target=exec, args=("outer()", names))
    thread.start()
    thread.join()
    with capsys.disabled():
        print(f"\n  take {out['take']:.0f} ns, user_stack {out['stack']:.0f} ns, ids {out['ids']:.0f} ns")
    assert out["take"] < 30_000 and out["stack"] < 10_000
