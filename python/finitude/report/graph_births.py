"""Where the bad values of a tensor were born, read from its autograd graph alone: from what the graph keeps for the
backward pass, and from operations that are computed once more out of that. Nothing of it knows lines."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import _native
from ..program.tensor_stats import listed, statistic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..base.types import Birth, Tensor

MOST = 20_000  # nodes
MOST_NAMED = 6  # operations in one line, births in one answer
DEEPEST = 16  # operations that are computed once more to know what one gave


class Reading(NamedTuple):
    births: list[Birth]
    seen: list[Birth]  # where a bad value is first seen, which may have been born in operations before it
    notes: list[str]  # what else is to be said; why, where there is neither


def read(tensor: Tensor) -> Reading:
    """Runs no hook of the program, and leaves the graph as it is. Operators that are computed once more are no part of
    a step that is recorded, and have the dtypes that the graph says."""
    observed = _native.observe_operators(False)
    try:
        with torch.no_grad(), torch._C._DisableAutocast(), _disable_current_modes():
            return _read(tensor)
    finally:
        _native.observe_operators(observed)


def _read(tensor):
    if tensor.grad_fn is None:
        return Reading([], [], [_without_graph(tensor)])
    graph = _Graph(tensor)
    births, seen, notes = [], [], []
    if graph.is_freed:
        notes.append("backward has been through its autograd graph and freed what that kept: ask before backward()")
    if graph.is_cut:
        notes.append(f"only the {MOST:,} operations nearest to it were read")
    for node, between, is_open in graph.origins():
        birth = graph.birth(node)
        if birth["phase"] == "state" and not graph.is_unchanged(node):
            seen.append(birth)
            notes.append("the parameter holds it now: it may have been written since the forward pass")
            continue
        if birth["phase"] != "forward":
            births.append(birth)
            continue
        if graph.is_freed:
            continue
        if between or is_open:
            seen.append(birth)
            names = [*dict.fromkeys(_op(one) for one in between)]
            more = [f"{len(names) - MOST_NAMED} more operations"] if len(names) > MOST_NAMED else []
            what = [f"what {one} gave" for one in [*names[:MOST_NAMED], *more]]
            what += ["a number or a tensor without gradient that it reads"] if is_open else []
            notes.append(f"the graph does not keep {', '.join(what)}: the bad value may come from there")
        else:
            births.append(birth)
        if near := graph.parameters_near(node):
            notes.append(f"the parameters nearest before it: {', '.join(near)}")
    if len(births) > MOST_NAMED:
        notes.append(f"{len(births) - MOST_NAMED} more like these")
    return Reading(births[:MOST_NAMED], seen[:MOST_NAMED], [*dict.fromkeys(notes)])


class _Graph:
    def __init__(self, tensor: Tensor):
        self._root: Any = tensor.grad_fn
        self._values: dict[tuple[Any, int], Tensor | None] = {(tensor.grad_fn, tensor.output_nr): tensor}
        self._bad: dict[tuple[Any, int], bool] = {(tensor.grad_fn, tensor.output_nr): True}  # of outputs that are known
        self._operands: dict[Any, dict[str, Tensor]] = {}
        self._as_kept: set[int] = set()  # addresses of memory that the graph keeps and that was not written since
        self._raw_names: dict[Any, list[str]] = {}  # of a class of nodes: attributes for what they keep
        self.is_freed = self._was_written = False
        seen: set[Any] = {self._root}
        todo: list[Any] = [self._root]
        while todo and len(seen) < MOST:
            node = todo.pop()
            self._read_node(node)
            fresh = [n for n, _ in node.next_functions if n is not None and n not in seen]
            seen.update(fresh)
            todo += fresh
        self.is_cut = bool(todo)  # there is more of it

    def is_unchanged(self, leaf: Any) -> bool:
        """Does that parameter hold what it held in the forward pass? False: that is not known. An optimizer steps
        when a graph is freed; before that, the graph notices where what it keeps is written."""
        return not self.is_freed and (not self._was_written or _address(_variable(leaf)) in self._as_kept)

    @functools.cached_property
    def _known_parameters(self):
        return _parameter_names()

    def _read_node(self, node):
        if (variable := _variable(node)) is not None:
            self._values[node, 0] = variable
            return
        kept = self._kept_by(node)
        self._as_kept.update(map(_address, kept.values()))
        for value in kept.values():
            if value.grad_fn is not None:
                self._values.setdefault((value.grad_fn, value.output_nr), value)
        self._operands[node] = {name: value for name, value in kept.items() if value.grad_fn is not node}

    def _kept_by(self, node) -> dict[str, Tensor]:
        """{name: tensor} of what a node keeps, but where a hook of the program would have to bring it back."""
        found: dict[str, Any] = {}
        kind = type(node)
        if kind not in self._raw_names:
            self._raw_names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        for name in self._raw_names[kind]:
            short = name[len("_raw_saved_") :]
            try:
                raw = getattr(node, name)
                if not isinstance(raw, tuple):
                    found[short] = getattr(node, f"_saved_{short}") if _is_plain(raw) else None
                elif short == "tensors" and all(map(_is_plain, raw)):  # of a function of the program
                    found.update((f"saved {i}", one) for i, one in enumerate(node.saved_tensors))
            except RuntimeError as e:  # freed, or written to since
                self.is_freed = self.is_freed or "second time" in str(e)
                self._was_written = self._was_written or "inplace operation" in str(e)
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    def _output_of(self, node, number, depth=0):
        """What a node gave; None: that is not known."""
        if (node, number) not in self._values:
            self._values[node, number] = None  # while it is asked for
            if number == 0 and depth < DEEPEST:
                self._values[node, 0] = _once_more(node, self._with_known(node, depth))
        return self._values[node, number]

    def _with_known(self, node, depth):
        """Each overload of its operator, with {argument: tensor} of what is known."""
        for one in _overloads(node):
            tensors = [a.name for a in one._schema.arguments if "Tensor" in str(a.type)]
            given = dict(self._operands.get(node, {}))
            if len(tensors) == len(node.next_functions):
                for name, (below, number) in zip(tensors, node.next_functions):
                    if below is not None and name not in given:
                        given[name] = self._output_of(below, number, depth + 1)
            yield one, {name: value for name, value in given.items() if value is not None}

    def _is_bad_output(self, node, number):
        """None: not known."""
        if (node, number) not in self._bad:
            value = self._output_of(node, number)
            if value is None:
                return None
            self._bad[node, number] = not _native.is_finite(value)
        return self._bad[node, number]

    def origins(self) -> Iterator[tuple[Any, list[Any], bool]]:
        """(node, nodes below it whose outputs are not known, does it read what is not kept) of each that no known bad
        value leads to."""
        seen, todo = {self._root}, [self._root]
        while todo:
            node = todo.pop()
            if self._bad_data(node):
                yield node, [], False
                continue
            bad, between = self._below(node)
            if not bad:
                yield node, between, any(map(self._reads_unkept, (node, *between)))
            fresh = [n for n in bad if n not in seen]
            seen.update(fresh)
            todo += fresh

    def _below(self, node):
        """(the nearest nodes whose output is bad, those on the way whose output is not known)."""
        bad, between, seen, todo = [], [], {node}, [node]
        while todo:
            for below, number in todo.pop().next_functions:
                if below is None or below in seen or (is_bad := self._is_bad_output(below, number)) is False:
                    continue
                seen.add(below)
                if is_bad or self._bad_data(below):
                    bad.append(below)
                else:
                    todo.append(below)
                    if not _is_view(below):
                        between.append(below)
        return bad, between

    def _handed_in(self, node):
        """Tensors that it reads and that no operation of the graph made."""
        # Statistics that a batch norm in training mode writes are its output.
        writes = ("running_",) if getattr(node, "_saved_training", False) else ()
        return {
            name: tensor
            for name, tensor in self._operands.get(node, {}).items()
            if not tensor.requires_grad and name in _arguments(node) and not name.startswith(writes)
        }

    def _bad_data(self, node):
        return {name: t for name, t in self._handed_in(node).items() if not _native.is_finite(t)}

    def _reads_unkept(self, node):
        return len(self._handed_in(node)) < sum(below is None for below, _ in node.next_functions)

    def birth(self, node: Any) -> Birth:
        """That of a node which no bad value leads to through the graph."""
        if (variable := _variable(node)) is not None:
            name = self._known_parameters.get(id(variable), "a parameter")
            return _birth("state", "", name, {name: variable}, None)
        if data := self._bad_data(node):
            return _birth("data", "", f"{next(iter(data))} of {_op(node)}", data, None)
        output = next((value for (of, _), value in self._values.items() if of is node and value is not None), None)
        return _birth("forward", _op(node), "", self._operands.get(node, {}), output)

    def parameters_near(self, node: Any) -> list[str]:
        """Names of those nearest before it, which say where in the model it is."""
        level, seen, names = [node], {node}, self._known_parameters
        while level:
            level = [n for one in level for n, _ in one.next_functions if n is not None and n not in seen]
            seen.update(level)
            found = [names[id(leaf)] for leaf in map(_variable, level) if id(leaf) in names]
            if found:
                return list(dict.fromkeys(found))[:2]
        return []


def _variable(node):
    """The tensor without a history into which backward adds a gradient; None: it is another node. A function of the
    program may have an attribute of that name."""
    return node.variable if node.name() == "torch::autograd::AccumulateGrad" else None


def _address(tensor):
    """Of its memory; 0: it has none, as a wrapper of another tensor."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _is_plain(raw):
    """No hook has packed it (checkpointing, offloading): such a hook would run code of the program."""
    return getattr(raw, "unpack_hook", None) is None and isinstance(raw.data, (torch.Tensor, type(None)))


def _word(node):
    """ "log_softmax" of "LogSoftmaxBackward0"; None: it is no operator of torch, as a function of the program."""
    if (found := re.fullmatch(r"(\w+)Backward\d+", node.name())) is None:
        return None
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found[1]).lower()
    return next((one for one in (word, f"_{word}") if hasattr(torch.ops.aten, one)), None)


def _op(node):
    return node.name().removesuffix("Backward") if (word := _word(node)) is None else f"aten::{word}"


def _overloads(node):
    if (word := _word(node)) is None:
        return []
    packet = getattr(torch.ops.aten, word)
    return [getattr(packet, name) for name in packet.overloads()]


def _arguments(node):
    return {argument.name for one in _overloads(node) for argument in one._schema.arguments}


def _is_view(node):
    return any(one.is_view for one in _overloads(node))


def _once_more(node, given):
    """The output of its operator, where each argument of an overload is known; None: that is not so. given: see
    _Graph._with_known."""
    for one, known in given:
        schema, arguments = one._schema, {}
        if schema.is_mutable or torch.Tag.nondeterministic_seeded in one.tags:
            continue
        if [str(returned.type) for returned in schema.returns] != ["Tensor"]:
            continue
        try:
            for argument in schema.arguments:
                if argument.name in known:
                    arguments[argument.name] = known[argument.name]
                elif "Tensor" not in str(argument.type) and hasattr(node, f"_saved_{argument.name}"):
                    arguments[argument.name] = getattr(node, f"_saved_{argument.name}")
            if len(arguments) == len(schema.arguments) and _is_of(node, made := one(**arguments)):
                return made
        except (RuntimeError, TypeError, ValueError, IndexError):  # it was another overload, or it is freed
            continue
    return None


def _is_of(node, made):
    """Has it the shape and dtype that this node gave?"""
    known = getattr(node, "_input_metadata", None)
    return not known or (tuple(known[0].shape), known[0].dtype) == (tuple(made.shape), made.dtype)


def _parameter_names():
    """{id: name} of the parameters of the modules that there are, each by the module that holds most."""
    found, modules = {}, _native.instances((torch.nn.Module,))
    for module in sorted(modules, key=lambda one: sum(1 for _ in one.modules())):
        for name, parameter in module.named_parameters():
            found[id(parameter)] = f"{type(module).__name__}.{name}"
    return found


def _birth(phase, op, name, inputs, output) -> Birth:
    read = (statistic(argument, tensor) for argument, tensor in inputs.items())
    found: Birth = {
        "phase": phase,
        "op": op,
        "file": "",
        "line": 0,
        "source": "",
        "module": "",
        "node": "",
        "inputs": [one for one in read if one is not None],
        "outputs": [] if output is None else listed("", output.detach()),
        "rows": [],
    }
    if name:
        found["name"] = name
    return found


def _without_graph(tensor):
    """Why it has none, in the words of whoever asks."""
    names = _parameter_names()
    if (name := names.get(id(tensor))) is not None:
        return f"it is the parameter {name}: whatever wrote into it was not recorded"
    for module in _native.instances((torch.nn.Module,)):
        for parameter in module.parameters():
            if parameter.grad is tensor:
                name = names.get(id(parameter), "a parameter")
                return f"it is the gradient of {name}, and backward records nothing: ask of the loss before backward()"
    return "it has no autograd graph (made under no_grad, detached, or of tensors without gradient)"
