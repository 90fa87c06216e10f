"""What each operation of a step computed, kept in a file, and the same step of a changed program held against it: which
values that the birth did not touch are no longer those that they were.

An element counts as touched where it is not finite, where it lies in a row that a value which is not finite has
reached, or where an operation that may swallow such a value read one and has no rows in common with it. All others are
to keep their bits. docs/agents.md says it for users."""

from __future__ import annotations

import contextlib
import ctypes
import json

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _native
from ..base.kinds import is_a
from .aligned import aligned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MOST_BYTES = 1 << 30  # that are kept of a step; beyond, values are not compared, and that is said
MOST_CALLS = 200_000
MOST_HELD = 256 << 20  # bytes of tensors that are kept alive because a touched row of theirs is finite
_ROUNDINGS = 8  # as docs/contract.md has it: 8 ulp x sqrt(n)
# What they return is memory that nothing has written, or no value of the program's.
_NO_VALUES = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "resize_",
    "set_",
    "detach",
    "lift_fresh",
)
# A result of these that is finite owes nothing to an operand that is not: they add and multiply.
_PASSES_ON = frozenset(
    "add add_ sub sub_ rsub mul mul_ mm addmm bmm baddbmm mv addmv dot sum mean cumsum convolution linear "
    "convolution_backward native_layer_norm_backward embedding_dense_backward index_add index_add_".split()
)


class _Call:
    """An operation: its name, what it returned, and what of that was touched."""

    def __init__(self, name: str):
        self.name, self.outputs = name, []

    def form(self) -> Any:
        return (self.name, tuple((o["dtype"], tuple(o["shape"])) for o in self.outputs))

    def with_values(self) -> Any:
        return (*self.form(), tuple(o["sum"] for o in self.outputs))


def _tensors(value, found):
    if is_a(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _tensors(one, found)
    return found


def _is_kept(t):
    return t.layout == torch.strided and t.device.type == "cpu" and not t.is_conj() and not t.is_neg()


def _finite(t):
    return not (t.dtype.is_floating_point or t.dtype.is_complex) or _native.is_finite(t)


def _memory(t):
    """Its bytes as they lie there, from its first element to its last: nothing is computed, which would be observed."""
    if t.numel() == 0:
        return b""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))
    return ctypes.string_at(t.data_ptr(), extent * t.element_size())


def _again(about, data):
    """The tensor of which `_memory` gave those bytes."""
    dtype = getattr(torch, about["dtype"])
    if not data:
        return torch.empty(about["shape"], dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return torch.as_strided(flat, about["shape"], about["stride"])


def _bad_rows(t):
    """Rows of dimension 0 that hold a value that is not finite; None: it has no rows."""
    if t.dim() == 0 or not (t.dtype.is_floating_point or t.dtype.is_complex):
        return None
    whole = _again({"dtype": _word(t.dtype), "shape": t.shape, "stride": t.stride()}, _memory(t))
    return set(torch.isfinite(whole).reshape(t.shape[0], -1).all(1).logical_not().nonzero().flatten().tolist())


def _word(dtype):
    return str(dtype).removeprefix("torch.")


class Recorder(TorchDispatchMode):
    """Writes what the operations of this thread return from `start` to `end`. Never fails: what it could not keep is
    counted, and nothing is then said of it."""

    def __init__(self, path: str):
        super().__init__()
        self.path, self.calls, self.lost, self.bytes = path, [], 0, 0
        self.trouble = ""
        self._to: BinaryIO | None = None
        self._on = contextlib.ExitStack()
        self._touched = {}  # memory -> (rows or None for all of it, number of rows)
        self._held, self._held_bytes = [], 0  # so that their memory serves no other tensor

    def start(self) -> None:
        self._to = open(self.path, "wb")
        self._on.enter_context(self)

    @property
    def is_on(self) -> bool:
        return self._to is not None

    def end(self) -> None:
        """Writes the list of calls."""
        if self._to is None:
            return
        file, self._to = self._to, None
        try:
            self._on.close()
        except Exception as e:
            self.trouble = self.trouble or f"{type(e).__name__}: {e}"
        self._touched, self._held = {}, []
        try:
            file.close()
            with open(self.path + ".calls", "w", encoding="utf-8") as f:
                json.dump(
                    {
                        "lost": self.lost,
                        "trouble": self.trouble,
                        "calls": [{"name": call.name, "outputs": call.outputs} for call in self.calls],
                    },
                    f,
                )
        except (OSError, ValueError) as e:
            self.trouble = f"{type(e).__name__}: {e}"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._to is None:
            return func(*args, **kwargs)
        given = self._guarded(self._reached, func, args, kwargs)
        result = func(*args, **kwargs)
        if given is not None:
            self._guarded(self._noted, func, given, result)
        return result

    def _guarded(self, what, *args):
        try:
            return what(*args)
        except Exception as e:  # it is the program's step that matters
            self.lost += 1
            self.trouble = self.trouble or f"{type(e).__name__}: {e}"
            return None

    def _reached(self, func, args, kwargs):
        """(rows that were touched or None for all, how many rows there are, whether by a finite value) of each tensor
        that it reads and that was touched."""
        found = []
        for t in _tensors([*args, *kwargs.values()], []):
            if not _is_kept(t):
                continue
            held = self._touched.get(t.untyped_storage()._cdata)
            bad = not _finite(t)
            if bad:
                rows = _bad_rows(t)
                found.append((rows, t.shape[0] if rows is not None else 0, False))
            if held is not None:
                rows, count = held
                fits = rows is not None and t.dim() > 0 and t.shape[0] == count
                found.append((rows if fits else None, count if fits else 0, True))
        return found

    def _noted(self, func, given, result):
        name = func._schema.name.removeprefix("aten::")
        returns = func._schema.returns
        if name in _NO_VALUES or len(self.calls) >= MOST_CALLS:
            self.lost += len(self.calls) >= MOST_CALLS
            return
        if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return  # a view
        outputs = _tensors(result, [])
        if not outputs:
            return
        call = _Call(func._schema.name)
        for t in outputs:
            if not _is_kept(t):
                self.lost += 1
                continue
            call.outputs.append(self._entered(name, t, given))
        if call.outputs:
            self.calls.append(call)

    def _entered(self, name, t, given):
        bad = not _finite(t)
        rows, all_of_it = set(), False
        for touched, count, is_finite in given:
            if touched is not None and t.dim() > 0 and t.shape[0] == count:
                rows |= touched
            elif is_finite or name not in _PASSES_ON or not t.dtype.is_floating_point:
                all_of_it = True
        if bad and (own := _bad_rows(t)) is not None:
            rows |= own
        about = {
            "dtype": _word(t.dtype),
            "shape": list(t.shape),
            "stride": list(t.stride()),
            "bad": bad,
            "rows": None if all_of_it else sorted(rows),
            "sum": 0,
            "at": -1,
            "bytes": 0,
        }
        if rows or all_of_it:
            self._touch(t, None if all_of_it else rows)
        elif self._touched and not bad and t.numel() * t.element_size() == t.untyped_storage().nbytes():
            self._touched.pop(t.untyped_storage()._cdata, None)  # overwritten
        data = _memory(t)
        about["sum"] = f"{_native.checksum(t) & (1 << 64) - 1:x}"
        if self.bytes + len(data) > MOST_BYTES:
            self.lost += 1
        else:
            about["at"], about["bytes"] = self.bytes, len(data)
            assert self._to is not None
            self._to.write(data)
            self.bytes += len(data)
        return about

    def _touch(self, t, rows):
        memory = t.untyped_storage()
        size = memory.nbytes()
        if self._held_bytes + size > MOST_HELD:
            self.lost += 1
            return
        if memory._cdata not in self._touched:
            self._held.append(memory)
            self._held_bytes += size
        self._touched[memory._cdata] = (rows, t.shape[0] if rows is not None and t.dim() else 0)


def _read(path):
    with open(path + ".calls", encoding="utf-8") as f:
        document = json.load(f)
    calls = []
    for one in document["calls"]:
        call = _Call(one["name"])
        call.outputs = one["outputs"]
        calls.append(call)
    return calls, document["lost"], document["trouble"]


def _untouched(about, whole):
    """Which of its elements nothing that is not finite has reached; None: all of them."""
    if about["rows"] is None:
        return torch.zeros(whole.shape, dtype=torch.bool)
    if not about["bad"] and not about["rows"]:
        return None
    mask = torch.isfinite(whole)
    if about["rows"] and mask.dim() > 0:
        mask[torch.tensor(about["rows"])] = False
    return mask


def _bits(t):
    t = t.contiguous()
    return (
        t.reshape(-1).view(torch.uint8).reshape(t.numel(), -1) if t.numel() else torch.zeros((0, 1), dtype=torch.uint8)
    )


class Held:
    """The steps of two programs: what of the first one's values the second one kept."""

    def __init__(self, before: str, after: str):
        self.before, self.after = before, after
        (self.a, lost_a, trouble_a), (self.b, lost_b, trouble_b) = _read(before), _read(after)
        self.lost, self.trouble = lost_a + lost_b, trouble_a or trouble_b

    def compared(self, birth: dict[str, Any] | None) -> dict[str, Any]:
        """kept, changed: numbers of values. missing: operations of the first with untouched values that the second has
        not. hidden: whether the birth is still there. first: the first operation whose values changed. rounding:
        whether no difference is larger than 8 ulp x sqrt(n)."""
        pairs = aligned(
            [c.with_values() for c in self.a],
            [c.with_values() for c in self.b],
            [c.form() for c in self.a],
            [c.form() for c in self.b],
        )
        partner = dict(pairs)
        record: dict[str, Any] = {
            "kept": 0, "changed": 0, "missing": [], "added": [], "hidden": False, "first": None, "rounding": True,
            "largest": 0.0, "not_compared": self.lost, "trouble": self.trouble,
        }  # fmt: skip
        with open(self.before, "rb") as a, open(self.after, "rb") as b:
            for i, call in enumerate(self.a):
                if (j := partner.get(i)) is None:
                    if any(o["rows"] is not None and self._has_untouched(a, o) for o in call.outputs):
                        record["missing"].append(call.name)
                    continue
                for x, y in zip(call.outputs, self.b[j].outputs):
                    self._pair(record, call.name, x, y, a, b)
                record["hidden"] = record["hidden"] or self._still_there(call, self.b[j], birth)
        matched = set(partner.values())
        record["added"] = sorted({c.name for j, c in enumerate(self.b) if j not in matched})[:16]
        record["missing"] = [*dict.fromkeys(record["missing"])][:16]
        return record

    def _data(self, file, about):
        file.seek(about["at"])
        return _again(about, file.read(about["bytes"]))

    def _has_untouched(self, file, about):
        if about["at"] < 0:
            return True
        whole = self._data(file, about)
        mask = _untouched(about, whole)
        return whole.numel() > 0 and (mask is None or bool(mask.any()))

    def _pair(self, record, name, x, y, a, b):
        if x["at"] < 0 or y["at"] < 0:
            return  # counted as lost
        before = self._data(a, x)
        mask = _untouched(x, before)
        count = before.numel() if mask is None else int(mask.sum())
        if x["sum"] == y["sum"] and not x["bad"]:
            record["kept"] += count
            return
        after = self._data(b, y)
        same = (_bits(before) == _bits(after)).all(1).reshape(before.shape)
        other = ~same if mask is None else ~same & mask
        changed = int(other.sum())
        record["kept"] += count - changed
        record["changed"] += changed
        if changed:
            relative, is_rounding = _distance(before, after, other)
            record["rounding"] = record["rounding"] and is_rounding
            record["largest"] = max(record["largest"], relative)
            if record["first"] is None:
                record["first"] = {"op": name, "shape": x["shape"], "values": changed, "relative": relative}

    @staticmethod
    def _still_there(call, now, birth):
        """Does the operation of the birth give what is not finite in the changed program, too?"""
        if not birth or call.name != birth.get("op"):
            return False
        shapes = [o.get("shape") for o in birth.get("outputs") or () if isinstance(o, dict)]
        return any(
            x["bad"] and y["bad"] and (not shapes or x["shape"] in shapes) for x, y in zip(call.outputs, now.outputs)
        )


def _distance(before, after, other):
    """(the largest difference relative to the largest magnitude, whether it is one of rounding)."""
    if not before.dtype.is_floating_point:
        return 1.0, False
    x, y = before.double(), after.double()
    finite = torch.isfinite(x)
    if not bool(torch.isfinite(y[other]).all()):
        return float("inf"), False
    scale = float(x[finite].abs().max()) if bool(finite.any()) else 0.0
    gap = float((x - y)[other].abs().max())
    bound = _ROUNDINGS * torch.finfo(before.dtype).eps * min(before.numel(), 4096) ** 0.5
    relative = gap / scale if scale else (0.0 if gap == 0 else float("inf"))
    return relative, relative <= bound
