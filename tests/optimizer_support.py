"""Trains with an optimizer in this process, watched or not, and compares all that it keeps, bit by bit.

A watched training is given poisoned batches under `--on-alarm skip`; its reference is not watched and says `continue`
for them. Everything an optimizer keeps is compared after every batch: its state with keys in their order, its groups,
its own attributes, and the parameters."""

import contextlib
import hashlib
import random

import numpy as np
import torch
import torch._dynamo  # noqa: F401  optimizers pull it in: before few_objects puts what there is out of sight
from torch import nn

import finitude

NAN, INF = float("nan"), float("inf")
BATCHES = 7
BAD = (0, 3, 4)  # the first step, before there is any state; and two in a row


class NoSecondRuns:
    """Only the veto is under test: nothing is run again to explain it."""

    @staticmethod
    def take(*_):
        return False

    take_in_place = in_place_only = take


@contextlib.contextmanager
def watching(**options):
    """finitude.watch, under `skip` unless set otherwise."""
    with finitude.watch(**{"on_alarm": "skip", **options}) as watch:
        watch._session.second_runs.left = NoSecondRuns()
        yield watch


def flat(value, out, seen=()):
    """All of a value as bytes and words, in order; objects that hold optimizer state are opened."""
    if isinstance(value, torch.Tensor):
        out.append((str(value.dtype), tuple(value.shape), value.requires_grad))
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        out.append(dense.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b"")
    elif isinstance(value, dict):
        out.append((type(value).__name__, len(value)))
        for key, item in value.items():
            flat("a parameter" if isinstance(key, torch.Tensor) else key, out, seen)
            flat(item, out, seen)
    elif isinstance(value, (list, tuple)):
        out.append((type(value).__name__, len(value)))
        for item in value:
            flat(item, out, seen)
    elif isinstance(value, torch.optim.Optimizer):
        if id(value) not in seen:
            flat(keeps(value), out, (*seen, id(value)))
    elif isinstance(value, (bool, int, float, str, type(None), torch.dtype)):
        out.append(repr(value))


HOOKS = ("_hooks", "_opt_called", "_profile_name", "_cache")


def keeps(optimizer):
    """What an optimizer keeps, but for the hooks that stand on it, what its schedulers write there, and cached
    sizes."""
    return {k: v for k, v in vars(optimizer).items() if not k.endswith(HOOKS) and k != "step"}


def digest(optimizer, params):
    out = []
    flat([keeps(optimizer), [p.detach() for p in params]], out)
    return hashlib.sha256(repr(out).encode()).hexdigest()[:16]


class Dense(nn.Module):
    """Two layers; all that an optimizer of matrices takes, or with vectors and an empty parameter besides."""

    sparse = False

    def __init__(self, vectors=True):
        super().__init__()
        torch.manual_seed(5)
        self.a, self.b = nn.Linear(4, 6, bias=vectors), nn.Linear(6, 3, bias=vectors)

    def forward(self, i):
        generator = torch.Generator().manual_seed(i)
        return self.b(torch.tanh(self.a(torch.randn(8, 4, generator=generator))))


class Matrices(Dense):
    def __init__(self):
        super().__init__(vectors=False)


class Sparse(nn.Module):
    """A table with sparse gradients: some rows in each batch, one of them twice."""

    sparse = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(12, 3, sparse=True)

    def forward(self, i):
        return self.table(torch.tensor([i, i + 1, i + 1, 11]))


MODELS = (Dense, Matrices, Sparse)


def poison(out, how):
    """A loss that is not finite, or gradients that are not though the loss is."""
    loss = (out - 1).pow(2).mean()
    if how == "loss":
        return loss * NAN
    out.register_hook(lambda g: g * (NAN if how == "gradient" else INF))
    return loss


def is_deterministic(make, **how):
    """Some draw random numbers that no seed reaches, or know parameters by their addresses, which another training
    cannot have while this one's are there."""
    kept = []
    return train(make, kept=kept, **how) == train(make, kept=kept, **how)


def train(make, model=Dense, bad=(), skipped=(), how="loss", closure=False, extra=None, batches=BATCHES, kept=None):
    """Digests after every batch. bad: batches that are poisoned; skipped: those for which the loop says `continue`.

    make(params) -> optimizer. extra(optimizer) -> called after each step, not after a batch for which it continues.
    """
    random.seed(5)  # optimizers of packages draw from all three
    np.random.seed(5)
    net = model()  # seeds torch
    params = list(net.parameters())
    optimizer = make(params)
    after = extra(optimizer) if extra else lambda: None
    if kept is not None:
        kept.append((net, optimizer))
    digests = []
    for i in range(batches):
        if i not in skipped:

            def evaluate():
                optimizer.zero_grad()
                out = net(i)
                loss = poison(out, how) if i in bad else (out - 1).pow(2).mean()
                loss.backward()
                return loss

            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
            after()
        digests.append(digest(optimizer, params))
    return digests


HOWS = ("loss", "gradient", "infinity")


def check(make, model=Dense, hows=HOWS, **options):
    """The vetoed training is the one that skips its bad batches; a healthy one is what it is unwatched. hows: what is
    bad in a batch, one training for each."""
    plain = train(make, model, **options)
    reference = train(make, model, skipped=BAD, **options)
    assert len(set(plain)) == BATCHES, "a step changes nothing: this training can show no difference"
    assert plain[-1] != reference[-1]
    with watching() as watch:
        assert train(make, model, **options) == plain, "watching changed a healthy training"
        assert not watch.alarms and not watch.report()["advisories"], watch.alarms
        assert watch.report()["watched"]["steps"] == BATCHES
    for how in hows:
        with watching() as watch:
            got = train(make, model, bad=BAD, how=how, **options)
            first = next((i for i, (a, b) in enumerate(zip(got, reference)) if a != b), None)
            assert first is None, f"a bad {how}: not the same after batch {first}"
            assert [a["step"] for a in watch.alarms] == list(BAD), watch.alarms
            assert {a["weights"] for a in watch.alarms} == {"clean"}
            assert not watch.report()["advisories"], watch.report()["advisories"]
            assert watch.report()["watched"]["steps"] == BATCHES
    return True


def is_accepted(make, model=Dense, **options):
    """Does torch itself train like this? Otherwise what it says."""
    try:
        return train(make, model, batches=2, **options) and ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
