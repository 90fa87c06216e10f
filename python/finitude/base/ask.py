"""What is known of incidents in C++ (src/incident): the engine answers where it is loaded, else finitude-offline, which
needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from . import programs
from .plain_json import safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def ask(what: str, run: str = "", **given: Any) -> Any:
    """The answer to a question of src/incident/answer.h. run: the folder of a run. Raises ValueError where the
    question is refused, OSError where finitude-offline cannot be started."""
    question = json.dumps({"what": what, **safe(given)}, allow_nan=False)
    engine = sys.modules.get("finitude._native")
    if engine is not None:
        return json.loads(engine.incident(question, os.fsencode(run)))
    words = [programs.path_of(programs.OFFLINE), "incident", *([os.path.abspath(run)] if run else [])]
    done = subprocess.run(words, input=question.encode(), capture_output=True)
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    return json.loads(done.stdout)
