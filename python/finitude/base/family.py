"""What a watched program hands down to the processes that it starts, so that those that train are watched as well.

Two environment variables: PYTHONPATH, by which each Python finds our sitecustomize (_hook), and FINITUDE_FAMILY, which
names the directory of the run and the options. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from . import HOME, config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from datetime import datetime

    from .types import Config

VARIABLE = "FINITUDE_FAMILY"
RESUMED = "FINITUDE_RESUMED_FROM"  # folder of the run that one started by --resume continues
INJECT = "FINITUDE_INJECT"  # names the order of a program that `finitude replay --with` starts
HOOK = os.path.join(HOME, "_hook")
_HOOK_TAIL = os.path.join("finitude", "_hook")


@dataclasses.dataclass
class Family:
    directory: str  # of the run; every process that trains makes one of its own below it
    settings: config.Config
    orders: str = ""  # in a second run of the whole program: the directory with what each process is to explain


def run_path(settings: Config, script: str, started: datetime) -> str:
    """The directory of a run. Not made here. Its name begins with the time in milliseconds: runs sorted by name are
    sorted by time, also those that begin in the same second."""
    stem = os.path.splitext(os.path.basename(script or "run"))[0] or "run"
    time = f"{started.astimezone():%Y%m%d-%H%M%S}-{started.microsecond // 1000:03d}"
    name = f"{time}-{stem}-{os.getpid()}"
    return os.path.abspath(os.path.join(settings.runs, name))


def _is_hook(entry):
    return entry.rstrip(os.sep).endswith(_HOOK_TAIL)


def withdraw(environ: MutableMapping[str, str]) -> None:
    """Removes Finitude's parts of both variables."""
    environ.pop(VARIABLE, None)
    rest = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if not _is_hook(p)]
    if any(rest):
        environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        environ.pop("PYTHONPATH", None)


def announce(environ: MutableMapping[str, str], directory: str, settings: Config, orders: str = "") -> None:
    """Processes started with this environment belong to the run in `directory`."""
    withdraw(environ)
    environ[VARIABLE] = json.dumps(
        {"directory": directory, "orders": orders, "settings": {**dataclasses.asdict(settings), "report": ""}}
    )
    before = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = HOOK + (os.pathsep + before if before else "")


def found(environ: Mapping[str, str] = os.environ) -> Family | None:
    """The family that this process was born into, or None."""
    try:
        given = json.loads(environ.get(VARIABLE, "null"))
        return given and Family(given["directory"], config.Config(**given["settings"]), given["orders"])
    except (ValueError, KeyError, TypeError):  # of another version of finitude
        return None


def stand_down() -> None:
    """This process is a `finitude run` of its own: whatever waits in it for its training lets go."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "is_finitude", False)]
    child = sys.modules.get("finitude.launch.child")
    if child is not None:
        child.let_go()
