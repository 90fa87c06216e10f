"""The alarm that a capsule tells of, made that of the run. Without torch: a launcher does it for its ranks."""

import contextlib
import json
import os

from ..base.plain_json import read, safe


def complete(alarm, redact):
    """What became of the step is known only when its capsule is there: its report is made that of the run. Where that cannot be, or the
    capsule has gone meanwhile, nothing is lost but that."""
    about = os.path.join(alarm["capsule"], "capsule.json")
    temporary = f"{about}.{os.getpid()}.new"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = read(about)
        if not isinstance(document, dict):
            raise ValueError
        told = {**alarm, "capsule": None}  # wherever it lies
        document["alarm"] = safe(without_sources(told) if redact else told)
        try:
            with open(temporary, "w", encoding="utf-8") as f:
                json.dump(document, f, indent=1, allow_nan=False)
            os.replace(temporary, about)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def without_sources(value):
    if isinstance(value, dict):
        kept = {k: without_sources(v) for k, v in value.items() if k not in ("source", "file", "saved", "diff", "samples")}
        if isinstance(kept.get("outcome"), str):
            kept["outcome"] = kept["outcome"].partition(":")[0]  # what follows may show a value and its line
        return kept
    return [without_sources(v) for v in value] if isinstance(value, list) else value
