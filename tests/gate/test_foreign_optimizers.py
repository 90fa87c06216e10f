"""Optimizers that are not torch's: classes of a script, wrappers around others, and packages. The veto is exact for
them."""

import pytest
import torch

import finitude
from finitude import _native
from optimizer_support import (
    BAD,
    BATCHES,
    INF,
    NAN,
    Dense,
    check,
    digest,
    is_accepted,
    is_deterministic,
    train,
    watching,
)


@pytest.fixture(autouse=True)
def _quick(few_objects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Signs(torch.optim.Optimizer):
    """Counts in its own attributes, in its groups and in its state, and needs every gradient."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "calls": 0})
        self.calls, self.last = 0, []

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        self.calls += 1
        for group in self.param_groups:
            group["calls"] += 1
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("history", []).append(p.grad.mean())
                m = state.setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 0.1)
                p.sub_(m.sign(), alpha=group["lr"])
        return loss


class OnlyByClosure(Signs):
    def step(self, closure):
        return super().step(closure)


class Swallowing(torch.optim.Optimizer):
    """A closure that raises is nothing to it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        try:
            with torch.enable_grad():
                closure()
        except Exception:
            pass
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware: moves the weights, evaluates the closure there, moves back, and lets another optimizer step."""

    def __init__(self, params, base=torch.optim.SGD, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def _move(self, factor):
        for p in (p for group in self.param_groups for p in group["params"]):
            if factor > 0:
                self.state[p]["moved"] = p.grad * self.param_groups[0]["rho"]
            p.data.add_(self.state[p]["moved"], alpha=factor)

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        self._move(1)
        with torch.enable_grad():
            closure()
        self._move(-1)
        self.base.step()
        return loss


class SharpFromGradients(Sharp):
    """The same for a loop that calls backward itself: the closure is only the second evaluation."""

    def step(self, closure):
        self._move(1)
        with torch.enable_grad():
            closure()
        self._move(-1)
        self.base.step()


class Lookahead(torch.optim.Optimizer):
    """Holds the optimizer that does the work, and pulls the weights back to slow ones every second step."""

    def __init__(self, params, base=torch.optim.Adam):
        params = list(params)
        super().__init__(params, {"lr": 0.01})
        self.base, self.count = base(params, lr=0.01), 0

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.count % 2 == 0:
                    slow.lerp_(p.detach(), 0.5)
                    p.data.copy_(slow)
        return loss


class Counting(torch.optim.AdamW):
    """A class of torch with something around its step."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


class Renamed(torch.optim.Adam):
    """A class of torch under another name: its step is torch's."""


class Search(torch.optim.Optimizer):
    """Halves its step until the loss is finite and smaller: its trials may overflow."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1.0})

    def step(self, closure):
        first, (params,) = closure(), [g["params"] for g in self.param_groups]
        grads = [p.grad.clone() for p in params]
        start, lr = [p.detach().clone() for p in params], self.param_groups[0]["lr"]
        for _ in range(40):
            for p, s, g in zip(params, start, grads):
                p.data.copy_(s - lr * g)
            if closure() < first:
                break
            lr /= 2
        self.state[params[0]]["lr"] = lr
        return first


@pytest.mark.parametrize("make", [Signs, Lookahead, Counting, Renamed])
def test_without_a_closure(make):
    assert check(make)


@pytest.mark.parametrize("make", [Signs, OnlyByClosure, Sharp, Lookahead, Counting, Renamed])
def test_with_a_closure(make):
    assert check(make, closure=True)


@pytest.mark.parametrize("make", [lambda p: Sharp(p, torch.optim.Adam, lr=0.01), lambda p: Sharp(p, Signs, lr=0.01)])
def test_step_moving_weights_before_second_evaluation_is_vetoed(make):
    assert check(make, closure=True)


def test_class_swallowing_closure_errors_is_vetoed_too():
    assert check(Swallowing, closure=True)


def test_gradients_present_before_closure_are_judged_before_step(tmp_path):
    def training(bad=(), skipped=()):
        net = Dense()
        params = list(net.parameters())
        optimizer = SharpFromGradients(params, lr=0.05)
        digests = []
        for i in range(BATCHES):

            def evaluate():
                optimizer.zero_grad()
                ((net(i) - 1).pow(2).mean() * (NAN if i in bad else 1)).backward()

            if i not in skipped:
                evaluate()
                optimizer.step(evaluate)
            digests.append(digest(optimizer, params))
        return digests

    reference, plain = training(skipped=BAD), training()
    with watching() as watch:
        assert training() == plain and not watch.alarms
        assert watch.report()["watched"]["steps"] == BATCHES
    with watching() as watch:
        assert training(bad=BAD) == reference
        assert [a["step"] for a in watch.alarms] == list(BAD)


def test_failing_second_evaluation_leaves_weights_unchanged():
    # Only the moved weights overflow: the optimizer inside is stopped, for its gradients.
    net = Dense()
    params = list(net.parameters())
    optimizer = Sharp(params, lr=0.05)
    times = 0

    def evaluate():
        nonlocal times
        times += 1
        optimizer.zero_grad()
        loss = (net(0) - 1).pow(2).mean() * (NAN if times == 4 else 1)
        loss.backward()
        return loss

    with watching() as watch:
        optimizer.step(evaluate)
        before = [p.detach().clone() for p in params]
        optimizer.step(evaluate)
        assert [a["optimizer"] for a in watch.alarms] == ["SGD"] and watch.alarms[0]["weights"] == "clean", watch.alarms
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(before, params))
        optimizer.step(evaluate)
        assert len(watch.alarms) == 1


def test_closure_computation_is_not_optimizer_arithmetic():
    net = Dense()
    optimizer = Signs(list(net.parameters()))
    zero = 1.0

    def evaluate():
        optimizer.zero_grad()
        loss = torch.log(net(0).pow(2).mean() * zero)
        loss.backward()
        return loss

    with finitude.watch(on_alarm="skip") as watch:  # with second runs
        for zero in (1.0, 1.0, 0.0):
            optimizer.step(evaluate)
    (alarm,) = watch.alarms
    birth = alarm["births"][0]
    assert (alarm["rerun_by"], birth["phase"], birth["op"]) == ("closure", "forward", "aten::log"), alarm
    assert alarm["cause"]["class"] == "log-of-zero"


def test_search_trials_may_overflow_but_start_is_undone():
    def training(bad=(), skipped=()):
        w = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        optimizer, values, digests = Search([w]), [], []
        for i in range(4):

            def evaluate():
                optimizer.zero_grad()
                loss = (w * w).exp().sum() * (NAN if i in bad else 1)
                loss.backward()
                values.append(float(loss.detach()))
                return loss

            if i not in skipped:
                optimizer.step(evaluate)
            digests.append(digest(optimizer, [w]))
        return digests, values

    with watching() as watch:
        digests, values = training()
        assert INF in values and not watch.alarms and not watch.report()["advisories"], watch.alarms
        assert watch.report()["watched"]["steps"] == 4
    assert digests == training()[0]
    reference = training(skipped=(0, 2))[0]
    with watching() as watch:
        assert training(bad=(0, 2))[0] == reference
        assert [(a["step"], a["sink"]["kind"], a["weights"]) for a in watch.alarms] == [
            (0, "loss", "clean"),
            (2, "loss", "clean"),
        ]


@pytest.mark.parametrize("policy", ["raise", "stop"])
@pytest.mark.parametrize("make", [Signs, Sharp, torch.optim.Adam])
def test_error_from_a_closure_leaves_everything_unchanged(make, policy):
    net = Dense()
    params = list(net.parameters())
    optimizer = make(params, lr=0.01)

    def evaluate(factor=1.0):
        optimizer.zero_grad()
        loss = (net(0) - 1).pow(2).mean() * factor
        loss.backward()
        return loss

    for steps in range(2):  # the first step and a later one
        with watching(on_alarm=policy):
            before = digest(optimizer, params)
            with pytest.raises(FloatingPointError):
                optimizer.step(lambda: evaluate(NAN))
            assert digest(optimizer, params) == before
            optimizer.step(evaluate)
            assert digest(optimizer, params) != before


def test_subclass_does_not_patch_its_torch_base_class():
    plain, renamed = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))]), Renamed([torch.nn.Parameter(torch.ones(2))])
    with watching():
        assert check.__module__ and train(Renamed) and train(torch.optim.Adam)
        assert type(plain).step.__closure__[0].cell_contents.__name__ == "step"
        assert type(renamed).step.__closure__[0].cell_contents.__name__ == "step"


def test_close_restores_step_and_second_recorder_works():
    for _ in range(2):
        optimizer = Signs(list(Dense().parameters()))
        own = Signs.step.__closure__[0].cell_contents
        with watching(on_alarm="skip") as watch:
            train(Signs, bad=(1,))
            assert Signs.step.__closure__[0].cell_contents is not own
            assert [a["step"] for a in watch.alarms] == [1]
        assert Signs.step.__closure__[0].cell_contents is own and optimizer.calls == 0


def test_existing_optimizer_is_watched_by_each_recorder():
    params = list(Dense().parameters())
    optimizer = Signs(params)
    for _ in range(2):
        with watching(on_alarm="skip") as watch:
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
            before = digest(optimizer, params)
            params[0].grad = params[0].grad * NAN
            optimizer.step()
            assert len(watch.alarms) == 1 and digest(optimizer, params) == before


def test_optimizers_that_died_leave_no_entry_behind():
    with watching():
        before = _native.counters()["entries"]
        for _ in range(20):
            train(torch.optim.SGD, batches=1)
        assert _native.counters()["entries"] <= before + 2


class Delegate:
    """Not an optimizer, but used as one: all it does is done by the one it holds."""

    def __init__(self, optimizer):
        self.__dict__["inner"] = optimizer

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, closure=None):
        return self.inner.step(closure)

    def zero_grad(self):
        self.inner.zero_grad(set_to_none=False)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, Signs])
def test_through_an_object_that_delegates(kind, closure):
    assert check(lambda params: Delegate(kind(params, lr=0.01)), closure=closure)


def schedule_free(name, **options):
    def make(params):
        optimizer = getattr(pytest.importorskip("schedulefree"), name)(params, lr=0.01, **options)
        getattr(optimizer, "train", lambda: None)()
        return optimizer

    return make


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "AdamWScheduleFree",
        "SGDScheduleFree",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("RAdamScheduleFree", "AdamWScheduleFreeClosure")),
    ],
)
def test_schedule_free(name, closure):
    if name.endswith("Closure"):
        closure = True
    assert check(schedule_free(name), closure=closure)


@pytest.mark.thorough
def test_each_optimizer_of_a_package():
    package = pytest.importorskip("pytorch_optimizer")
    trained = 0
    for name in sorted(package.get_supported_optimizers()):
        make = package.load_optimizer(name)
        for closure in (False, True):
            if not is_accepted(make, closure=closure) and is_deterministic(make, closure=closure):
                trained += 1
                try:
                    check(make, closure=closure)
                except AssertionError as error:
                    raise AssertionError(f"{name}{', by closure' if closure else ''}: {error}") from error
                break
    assert trained > 50
