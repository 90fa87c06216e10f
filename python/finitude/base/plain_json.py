"""Values as JSON has them: no NaN or Inf, which travel as texts."""

import json
import math

MAX_BYTES = 256 << 20


def number(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def safe(value):
    if isinstance(value, dict):
        return {str(k): safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [safe(v) for v in value]
    return number(value)


def _refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def read(path, most=MAX_BYTES):
    """What a file of JSON from elsewhere holds. ValueError where it is none, is nested too deep, or is larger than so many bytes; OSError."""
    with open(path, "rb") as f:
        data = f.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
