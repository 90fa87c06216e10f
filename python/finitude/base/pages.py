"""Writes and shows reports where torch may not be loaded yet, or not be there at all."""

from __future__ import annotations

import contextlib
import json
import os

from . import say
from .ask import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO

    from .types import Document


@contextlib.contextmanager
def whole(path: str) -> Iterator[BinaryIO]:
    """A file that gets that name at the end, all or nothing; what is there already and no plain file (a link, a device)
    is written as it is."""
    beside = not os.path.lexists(path) or (os.path.isfile(path) and not os.path.islink(path))
    to = f"{path}.{os.getpid()}.tmp" if beside else path
    try:
        with open(to, "wb") as f:
            yield f
        if beside:
            os.replace(to, path)
    except BaseException:
        if beside:
            with contextlib.suppress(OSError):
                os.unlink(to)
        raise


def write_whole(path: str, content: bytes) -> None:
    """The bytes under that name, as `whole` has it."""
    with whole(path) as f:
        f.write(content)


def write(path: str, content: bytes) -> bool:
    """The same, into a folder that is made where it is not there. False, and a warning, where that cannot be."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write_whole(path, content)
        return True
    except OSError as e:
        say.say(f"finitude: warning: cannot write {path}: {e.strerror}\n")
        return False


def as_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def write_html(path: str, text: str) -> bool:
    """The page of the report whose JSON is `text`, where that can be made."""
    try:
        return write(path, ask("html", report=json.loads(text)).encode())
    except (OSError, ValueError) as e:
        say.say(f"finitude: warning: {path} could not be made: {e}\n")
        return False


def print_explained(document: Document) -> None:
    """The alarms that a second run of all ranks explained, as any other report on stderr; one is enough."""
    alarms = [a for a in document["alarms"] if a["rerun_by"] == "restart"]
    if not alarms:
        return
    shown = {**document, "alarms": alarms[:1], "advisories": []}
    shown.pop("trace", None)
    try:
        say.say(ask("terminal", report=shown, colour=say.has_colour(), width=80, unicode=say.has_unicode()))
    except (OSError, ValueError) as e:
        say.say(f"finitude: warning: the alarm of step {alarms[0]['step']} cannot be shown: {e}\n")
