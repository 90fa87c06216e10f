"""What a program held when a bad step began, beyond what the step read: optimizer state, generators, the batch as a
loader gave it, scalars of schedulers and scalers. With it a capsule can be put into a program of the user's:
inject.py."""

from __future__ import annotations

import collections.abc
import contextlib
import types
import weakref

import torch

from .. import _native
from ..base import secrets
from ..base.kinds import is_a
from . import optimizer_members, sinks as sinks_of
from .state_format import MAX_DEPTH, MAX_ITEMS, NotKept, Tensors, plain_value, tree, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..base.types import Generators, Optimizer, Source, Tensor
    from .grad_scaler import Scaling

CONTAINERS = (
    torch.Tensor,
    collections.abc.Mapping,
    tuple,
    list,
)  # what of a program's names is looked into for a batch

NO_BATCH = (str, bytes, type, torch.nn.Module, types.ModuleType, types.FunctionType, types.MethodType)
MAX_LOOKED_INTO = 20_000

_generators = None  # right where the recorded step began
_others = {}  # ordinal -> _Stepping, of the optimizers that there were


def here(generators: Generators | None = None, is_past: bool = False) -> None:
    """The step that is recorded begins. is_past: it began earlier, and what was taken since is not known."""
    global _generators
    _forget_others()
    _generators = generators or _native.take_generators()
    for optimizer in () if is_past else sinks_of.watched_optimizers():
        with contextlib.suppress(
            AttributeError, TypeError, RuntimeError
        ):  # of a class that is none of torch's: it is not recorded how that one stepped
            _others[_native.window(optimizer)["ordinal"]] = _Stepping(optimizer)


def _forget_others():
    for other in _others.values():
        other.hook.remove()
    _others.clear()


class _Stepping:
    """An optimizer as the recorded step begins, and its own steps from there on: those of one that did not fail are a
    part of it."""

    def __init__(self, optimizer):
        self.step = _native.window(optimizer)["step"]
        self.groups = _groups(optimizer)
        self.state = {}
        for p in optimizer_members.parameters(optimizer):
            held = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
            self.state[p] = dict(held) if is_a(held, collections.abc.Mapping) else {}
        self.in_hand = []  # at each of these steps, what the program had in its names then, by weak references
        self.hook = optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        held, seen = [], set()
        with contextlib.suppress(
            Exception
        ):  # of the program's objects: it is not recorded then what came before which batch
            for value in (
                v for frame in optimizer_members.user_frames() for v in optimizer_members.names_of(frame).values()
            ):
                for one in tensors_of(value, 0, seen) if issubclass(type(value), CONTAINERS) else (value,):
                    with contextlib.suppress(TypeError):
                        held.append(weakref.ref(one))
            self.in_hand.append(held)

    def before(self, batch: Any) -> int:
        """How many of its steps came before that batch was fetched."""
        own = [batch, *tensors_of(batch)]
        return next(
            (i for i, held in enumerate(self.in_hand) if any(ref() is one for ref in held for one in own)),
            len(self.in_hand),
        )


def tensors_of(value: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor in a batch. seen: ids of what has been looked into; each is once, and no more than so many are, as
    objects of a program may lead to all others."""
    seen, kind = (
        set() if seen is None else seen,
        type(value),
    )  # not what it says of itself, which may be code of the program's
    if issubclass(kind, torch.Tensor):
        yield value
    elif depth < MAX_DEPTH and not issubclass(kind, NO_BATCH) and id(value) not in seen and len(seen) < MAX_LOOKED_INTO:
        seen.add(id(value))
        inner = (
            value.values()
            if issubclass(kind, collections.abc.Mapping)
            else value
            if issubclass(kind, (tuple, list))
            else vars(value).values()
            if is_a(getattr(value, "__dict__", None), dict)
            else ()
        )
        for item in list(inner)[:MAX_ITEMS]:
            yield from tensors_of(item, depth + 1, seen)


def _fetched():
    """[(number of its loader, batch, indices of its samples or None, generators as the step had them, (its iterator,
    generators before it was fetched, if nothing was drawn since the loader was asked before; or None))] of the batches
    that the recorded step used, in order; [] where they are not all of them. And how many batches its loader was asked
    ahead."""
    events = _native.window_batches()
    given = [e for e in events if e[5] == "next" and e[3]]
    used = [e for e in given if any(_native.tape_reads(t) for t in tensors_of(e[1]))]
    if not used and not any(True for e in given for _ in tensors_of(e[1])):
        used = given  # without tensors: the program makes them of it
    owners = list(dict.fromkeys(e[0] for e in used))
    # Where a loader is asked ahead, the step drew its numbers after a later batch was fetched, and what it began with
    # was fetched in the step before.
    at = {id(e): i for i, e in enumerate(events)}
    last = at[id(used[-1])] if used else 0
    ahead = {o: sum(1 for e in events[last + 1 :] if e[0] == o and e[5] != "iter") for o in owners}
    if any(n and not any(e[0] == o and e[5] == "iter" for e in events) for o, n in ahead.items()):
        return [], max(ahead.values())
    return [
        (
            owners.index(e[0]),
            e[1],
            e[2],
            events[min(at[id(e)] + ahead[e[0]], len(events) - 1)][4],
            (e[6], events[at[id(e)] - 1][4] if at[id(e)] else None),
        )
        for e in used
    ], max(ahead.values(), default=0)


def _given(units, parameters):
    """The same of what a framework gave to the calls that it made for the step. What holds parameters is no batch: it
    is the framework's own."""
    own, found = {id(p) for p in parameters}, []
    for unit in units:
        for value in (*unit.args, *unit.kwargs.values()):
            tensors = [] if is_a(value, torch.nn.Module) else list(tensors_of(value))
            if any(_native.tape_reads(t) for t in tensors) and not any(id(t) in own for t in tensors):
                iterator, indices, before, _ = _native.batch_origin(value) or (None,) * 4
                found.append((0, value, indices, unit.generators, (iterator, before)))
                break
    return found


def _named():
    """The same of the batch that is in a name of the program's, or of the generator that a loop draws from: of a
    loader that is asked ahead it was fetched in the window before."""
    drawn = [
        it.gi_frame for it in _native.running_iterators() if is_a(it, types.GeneratorType) and it.gi_frame is not None
    ]
    for frame in [*optimizer_members.user_frames(), *drawn]:
        for value in optimizer_members.names_of(frame).values():
            if (
                issubclass(type(value), CONTAINERS)
                and any(_native.tape_reads(t) for t in tensors_of(value))
                and (origin := _native.batch_origin(value)) is not None
            ):
                iterator, indices, before, after = origin
                return [(0, value, indices, after, (iterator, before))]
    return []


def _option(value):
    """Of a parameter group; tuples (betas) as lists. None: no number, text or list of them."""
    if is_a(value, (tuple, list)):
        items = [plain_value(item) for item in value[:MAX_DEPTH]]
        return items if len(value) == len(items) and None not in items else None
    return plain_value(value)


def _groups(optimizer):
    return [
        {
            key: secrets.masked_value(str(key), plain)
            for key, value in group.items()
            if key != "params" and (plain := _option(value)) is not None
        }
        for group in optimizer.param_groups
    ]


def _memory(tensor):
    """Where it lies; None where it has no memory of its own."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return _native.local_of(tensor).untyped_storage().data_ptr()
    return None


def _began(other, optimizer, about, prefix, owned, tensors):
    """What another optimizer than the failed one had as the recorded step began, as far as its own steps within that
    have changed it: it lies on the tape, which is given its names. The form is that of `about`, which has what it came
    to; None where not all of it is to be had. owned: memory of the failed one, which has names of its own there."""

    def then(kind, name, tensor, now):
        if _memory(tensor) in owned or not _native.tape_reads(tensor):
            return now  # recorded already, or left as it was
        if (key := tensors.add_taped(kind, f"{prefix}{name}", tensor)) is None:
            raise NotKept(type(tensor).__name__)
        return key

    try:
        parameters, state, trees = {}, {}, {}
        for name, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
            parameters[name] = then("frozen", name, p, about["parameters"][name])
            for key, value in other.state[p].items():
                if is_a(value, torch.Tensor):
                    state.setdefault(name, {})[str(key)] = then(
                        "state", f"{name}.{key}", value, about["state"].get(name, {}).get(str(key))
                    )
                else:
                    trees.setdefault(name, {})[str(key)] = whole(value, "", None)
        buffers = {
            name: then("buffer", name, b, about["buffers"].get(name))
            for name, b in optimizer_members.buffers(optimizer)
        }
    except (NotKept, KeyError, RuntimeError, NotImplementedError):
        return None
    return {
        "parameters": parameters,
        "buffers": buffers,
        "state": state,
        "scalars": {},
        "trees": trees,
        "groups": other.groups,
    }


def _optimizer(optimizer, mine, tensors):
    """Its parameters, state and groups. Names are those of the tape for the one that failed."""
    prefix = "" if mine else f"optimizer-{_native.window(optimizer)['ordinal']}."
    parameters, state, scalars, trees, not_kept, gradients = {}, {}, {}, {}, [], []

    def keep(name, key, value):
        if is_a(value, torch.Tensor):
            state.setdefault(name, {})[key] = tensors.add(f"{prefix}state.{name}.{key}", value)
        elif (plain := plain_value(value)) is not None:
            scalars.setdefault(name, {})[key] = plain
        else:
            try:
                trees.setdefault(name, {})[key] = whole(value, f"{prefix}state.{name}.{key}", tensors)
            except NotKept as e:
                not_kept.append(f"{name}.{key} ({e})")

    for name, p in zip(optimizer_members.names(optimizer), optimizer_members.parameters(optimizer)):
        parameters[name] = tensors.add(f"{prefix}parameter.{name}", p)
        if p.grad is not None:
            gradients.append(name)
        held = optimizer.state.get(p) if hasattr(optimizer.state, "get") else None
        for key, value in held.items() if is_a(held, collections.abc.Mapping) else ():
            keep(name, str(key), value)
    buffers = {name: tensors.add(f"{prefix}buffer.{name}", b) for name, b in optimizer_members.buffers(optimizer)}
    window = _native.window(optimizer)
    record = {
        "class": type(optimizer).__name__,
        "ordinal": window["ordinal"],
        "failed": mine,
        "parameters": parameters,
        "buffers": buffers,
        "state": state,
        "scalars": scalars,
        "trees": trees,
        "not_kept": not_kept[:MAX_ITEMS],
        "groups": _groups(optimizer),
        "gradients": gradients,
        "backwards": window["backwards"],
    }
    return record


def _add_other_steps(failed, described, first, tensors):
    """What the steps of the other optimizers were within the recorded one. described: those of `_optimizer`, in order.
    first: its first batch, or None."""
    owned = {
        _memory(t) for t in (*optimizer_members.parameters(failed), *(b for _, b in optimizer_members.buffers(failed)))
    } - {None}
    for optimizer, about in described:
        other = _others.get(about["ordinal"])
        if other is None:
            continue
        about["stepped"] = _native.window(optimizer)["step"] - other.step
        if (
            about["stepped"] > 0
            and (began := _began(other, optimizer, about, f"optimizer-{about['ordinal']}.", owned, tensors)) is not None
        ):
            about["began"] = began
            if first is not None and len(other.in_hand) == about["stepped"]:
                about["stepped_before"] = other.before(first)


class Begun:
    """Holds references until the capsule is written: while the gate is shut they stay what they were."""

    def __init__(self, optimizer, units, scaler):
        """units: calls of a framework that the step consists of."""
        self.tensors, self.is_taken = Tensors(), False
        batches = []
        found, ahead = _fetched()
        found = found or _given(units, optimizer_members.parameters(optimizer))
        for i, (loader, batch, samples, generators, _) in enumerate(found):
            batches.append(
                {
                    "loader": loader,
                    "ahead": ahead,
                    "samples": samples,
                    "batch": tree(batch, f"batch.{i}", self.tensors),
                    "generators": self.tensors.add_bytes(f"generators.batch.{i}", generators.bytes()),
                }
            )
        for name, _, tensor in self.tensors.files:
            if name.startswith("batch."):
                _native.tape_name(tensor, "batch", name[len("batch.") :])  # so that it is not stored twice
        known = found or _named()  # as what it is, not as what another program is given in its place
        self.sources = [(iterator, batch, samples, before) for _, batch, samples, _, (iterator, before) in known]
        # A loader that gives one sample at a time has one index.
        self.samples = [[s] if is_a(s, int) else list(s) if is_a(s, tuple) else None for _, _, s, _, _ in known]
        optimizers = [optimizer, *(o for o in sinks_of.watched_optimizers() if o is not optimizer)]
        described = [_optimizer(o, o is optimizer, self.tensors) for o in optimizers]
        _add_other_steps(optimizer, [*zip(optimizers, described)][1:], found[0][1] if found else None, self.tensors)
        self.document: dict[str, Any] = {
            "optimizers": described,
            "batches": batches,
            "generators": self.tensors.add_bytes("generators.step", _generators.bytes())
            if _generators is not None
            else None,
            "schedulers": [
                {"class": type(s).__name__, "last_epoch": plain_value(getattr(s, "last_epoch", None))}
                for s in optimizer_members.schedulers([optimizer])
            ],
            "scaler": None,
        }
        if scaler is not None:
            self.document["scaler"] = {
                "scale": float(scaler.get_scale()),
                "growth_tracker": scaler._get_growth_tracker(),
            }
        self.document["tensors"] = self.tensors.specs


_begun = None


class Remembering:
    """Remembers with what a recorded step began."""

    def __init__(
        self,
        scaling: Scaling,
        units: Callable[[], Sequence[Any]],
        not_watched: Callable[[str], None],
        is_debug: bool = False,
    ):
        """units: the calls of a framework that the step consists of. not_watched: reports that the state is not known.
        is_debug: a failure is raised."""
        self._scaling, self._units, self._not_watched, self._is_debug = scaling, units, not_watched, is_debug

    def remember(self, optimizer: Optimizer | None) -> None:
        """The recorded step is over, and nothing of it is applied yet. Never raises: a capsule is one without it,
        too."""
        global _begun
        _begun = None
        if optimizer is None:
            _forget_others()
            return
        _native.trace_stop()  # what is done from here on is no part of the step
        try:
            _begun = Begun(optimizer, self._units(), self._scaling.scaler)
        except Exception as e:
            if self._is_debug:
                raise
            self._not_watched(f"what the program held besides, in the capsule ({type(e).__name__}: {e})")
        finally:
            _forget_others()


def sample_counts() -> list[int]:
    """How many samples each batch of the step that has just been recorded is of; empty where its loader did not report
    all."""
    samples = [] if _begun is None or _begun.is_taken else _begun.samples
    lengths = [len(indices) for indices in samples if is_a(indices, list)]
    return lengths if len(lengths) == len(samples) else []


def take_samples() -> tuple[list[Any], list[Source]]:
    """Of each batch of the step that has just been recorded: the indices of its samples, or None; and (iterator of its
    loader, batch, indices as the sampler gave them, generators before it). Given once."""
    if _begun is None or _begun.is_taken:
        return [], []
    _begun.is_taken = True
    return _begun.samples, _begun.sources


def forget() -> Begun | None:
    global _begun, _generators
    _forget_others()
    _begun, found, _generators = None, _begun, None
    return found
