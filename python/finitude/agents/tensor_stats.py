"""What the tensors of a safetensors file hold: counts, range, histogram by exponent, and where values are not finite.
Run as a program by the server, which itself loads no torch: python -m finitude.agents.tensor_stats FILE [NAME ...]"""

from __future__ import annotations

import json
import math
import struct
import sys

from ..base import plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_HEADER = 8 << 20
MOST_TENSOR = 1 << 30
MOST_TENSORS, MOST_PLACES, MOST_VALUES = 16, 12, 24
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip


def header(path: str) -> tuple[dict[str, Any], int]:
    """(what the file says of its tensors, where their bytes begin). Raises OSError, ValueError."""
    with plain_file.opened(path) as f:
        start = f.read(8)
        if len(start) < 8 or not 2 <= (size := struct.unpack("<Q", start)[0]) <= MOST_HEADER:
            raise ValueError("it is no safetensors file")
        try:
            entries = json.loads(f.read(size).decode("utf-8"))
        except RecursionError:
            raise ValueError("it is nested too deep") from None
    if not isinstance(entries, dict):
        raise ValueError("it is no safetensors file")
    return entries, 8 + size


def _tensor(path, one, begin):
    import torch

    shape, (first, last) = one["shape"], one["data_offsets"]
    dtype = getattr(torch, _DTYPES[one["dtype"]])
    count = math.prod(shape)
    numbers = (first, last, *shape)
    if (
        not all(type(n) is int and n >= 0 for n in numbers)
        or last - first != count * dtype.itemsize
        or last - first > MOST_TENSOR
    ):
        raise ValueError("a tensor of it has another size than it says, or is too large")
    with plain_file.opened(path) as f:
        f.seek(begin + first)
        data = f.read(last - first)
    if len(data) != last - first:
        raise ValueError("it is cut short")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def _number(value):
    value = value.item()
    return (
        value
        if isinstance(value, (int, bool))
        else str(value)
        if isinstance(value, complex) or not math.isfinite(value)
        else float(f"{value:.9g}")
    )


def described(t: Any) -> dict[str, Any]:
    """A tensor, in few numbers."""
    import torch

    stats: dict[str, Any] = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
    flat = t.reshape(-1)
    if t.dtype.is_floating_point:
        finite = torch.isfinite(flat)
        nan, inf = torch.isnan(flat), torch.isinf(flat)
        stats.update(nan=int(nan.sum()), pos_inf=int((inf & (flat > 0)).sum()), neg_inf=int((inf & (flat < 0)).sum()),
                    zeros=int((flat == 0).sum()))  # fmt: skip
        good = flat[finite].double()
        if good.numel():
            stats.update(min=_number(good.min()), max=_number(good.max()), mean=_number(good.mean()))
            sizes = good[good != 0].abs()
            exponents = torch.frexp(sizes).exponent - 1 if sizes.numel() else torch.empty(0, dtype=torch.int32)
            if exponents.numel():
                width = max(1, math.ceil((int(exponents.max()) - int(exponents.min()) + 1) / 16))
                buckets = torch.div(exponents, width, rounding_mode="floor")
                values, counts = buckets.unique(return_counts=True)
                stats["histogram of log2 of magnitudes"] = {
                    f"{int(v) * width}..{int(v) * width + width - 1}" if width > 1 else str(int(v)): int(c)
                    for v, c in zip(values, counts)
                }
                limit = torch.finfo(t.dtype)
                stats["limits of the dtype"] = {"largest": limit.max, "smallest normal": limit.tiny}
        bad = (~finite).nonzero().flatten()[:MOST_PLACES]
        if bad.numel():
            stats["not finite at"] = [[*(_index(int(i), t.shape)), _number(flat[i])] for i in bad]
            if t.dim():
                rows = (~finite).reshape(t.shape[0], -1).any(1).nonzero().flatten()
                stats["rows that are not finite"] = {"count": rows.numel(), "first": rows[:MOST_PLACES].tolist()}
    elif not t.dtype.is_complex and flat.numel():
        stats.update(min=_number(flat.min()), max=_number(flat.max()))
    stats["first values"] = [_number(v) for v in flat[:MOST_VALUES]]
    return stats


def _index(flat, shape):
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat //= size
    return found[::-1]


def main(words: list[str]) -> int:
    """Prints JSON: by name what a tensor holds; of names that are not there the first ones that are."""
    path, names = words[0], words[1:]
    try:
        entries, begin = header(path)
        entries.pop("__metadata__", None)
        wanted = names or sorted(entries)[:MOST_TENSORS]
        out = {}
        for name in wanted:
            if not isinstance(entries.get(name), dict):
                sys.stderr.write(f"there is no tensor {name}\n")
                return 3
            out[name] = described(_tensor(path, entries[name], begin))
    except (OSError, ValueError, KeyError, TypeError) as e:
        sys.stderr.write(f"{type(e).__name__}: {e}\n")
        return 3
    sys.stdout.write(json.dumps(out) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
