"""Is the "start" of a capsule.json what docs/format/capsule.md says? A capsule comes from anywhere."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
MAX_DEPTH = 16


def _is_count(value, most=1 << 48):
    return type(value) is int and 0 <= value <= most


def _is_number(value):
    return type(value) is float or type(value) is int and abs(value) < 1 << 63


def _is_name(value):
    return value is None or isinstance(value, str)


def _are_names(value):
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_tensor(record):
    return (
        isinstance(record, dict)
        and record.get("dtype") in DTYPES
        and isinstance(record.get("shape"), list)
        and len(record["shape"]) <= 64
        and all(_is_count(size) for size in record["shape"])
        and ("part" not in record or _is_part(record["part"], record["shape"]))
    )


def _is_part(part, whole):
    """Of a tensor that several ranks hold: it lies within the whole."""
    if not isinstance(part, dict) or type(part.get("is_partial")) is not bool:
        return False
    shape, begins = part.get("shape"), part.get("begins")
    if not isinstance(shape, list) or len(shape) != len(whole) or not all(map(_is_count, shape)):
        return False
    if begins is None:
        return True
    return (
        isinstance(begins, list)
        and len(begins) == len(whole)
        and all(_is_count(b) and b + n <= size for b, n, size in zip(begins, shape, whole))
    )


def _is_map(value, item):
    return isinstance(value, dict) and all(item(v) for v in value.values())


def kind_of(tree: dict[str, Any]) -> str:
    """The key that says what it is: that of an object has its class beside it, and a file may have the two in either
    order."""
    return "object" if "object" in tree else next(iter(tree))


def _is_tree(tree, depth=0):
    if not isinstance(tree, dict) or not tree or depth > MAX_DEPTH or len(tree) != (2 if "object" in tree else 1):
        return False
    kind = kind_of(tree)
    value = tree[kind]
    if kind in ("tensor", "array", "other"):
        return isinstance(value, str)
    if kind == "value":
        return value is None or isinstance(value, (bool, int, float, str))
    if kind == "float":
        return value in ("nan", "inf", "-inf")
    if kind in ("list", "tuple"):
        return isinstance(value, list) and all(_is_tree(item, depth + 1) for item in value)
    if kind not in ("dict", "object"):
        return False
    return (
        isinstance(value, list)
        and all(
            isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int) and _is_tree(pair[1], depth + 1)
            for pair in value
        )
        and (kind == "dict" or isinstance(tree.get("class"), str))
    )


def _is_held(record):
    """What an optimizer had, at one time."""
    return (
        isinstance(record, dict)
        and _is_map(record.get("parameters"), _is_name)
        and _is_map(record.get("buffers"), _is_name)
        and _is_map(record.get("state"), lambda s: _is_map(s, _is_name))
        and _is_map(record.get("scalars"), lambda s: _is_map(s, lambda v: isinstance(v, (bool, int, float, str))))
        and _is_map(record.get("trees", {}), lambda s: _is_map(s, _is_tree))
        and isinstance(record.get("groups"), list)
        and all(
            isinstance(g, dict) and all(g.get(key) is None or _is_number(g[key]) for key in ("lr", "initial_lr"))
            for g in record["groups"]
        )
    )


def _is_optimizer(record):
    return (
        _is_held(record)
        and isinstance(record.get("class"), str)
        and _is_count(record.get("ordinal"), 1 << 31)
        and type(record.get("failed")) is bool
        and _is_count(record.get("backwards", 0), 1 << 32)
        and type(record.get("stepped", 0)) is int
        and _is_count(record.get("stepped_before", 0))
        and _are_names(record.get("gradients", []))
        and _are_names(record.get("not_kept", []))
        and ("began" not in record or _is_held(record["began"]))
    )


def _is_batch(record):
    return (
        isinstance(record, dict)
        and _is_count(record.get("loader"), 1 << 20)
        and _is_count(record.get("ahead"), 1 << 20)
        and "generators" in record
        and _is_name(record["generators"])
        and _is_tree(record.get("batch"))
    )


def _is_scaler(record):
    return (
        record is None
        or isinstance(record, dict)
        and _is_number(record.get("scale"))
        and _is_count(record.get("growth_tracker"), 1 << 30)
    )


def is_sound(start: Any) -> bool:
    """True: every key that is read is there and of its form. Whether names and shapes fit is seen when they are
    used."""
    return (
        isinstance(start, dict)
        and _is_map(start.get("tensors"), _is_tensor)
        and isinstance(start.get("optimizers"), list)
        and all(map(_is_optimizer, start["optimizers"]))
        and sum(o["failed"] for o in start["optimizers"]) == 1
        and isinstance(start.get("batches"), list)
        and all(map(_is_batch, start["batches"]))
        and {"generators", "scaler"} <= set(start)
        and _is_name(start["generators"])
        and _is_scaler(start["scaler"])
        and isinstance(start.get("unwritten", []), list)
        and all(map(_is_count, start.get("unwritten", [])))
    )
