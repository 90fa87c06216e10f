"""control.toml in the folder of a run: settings that `finitude ctl` changes while it trains. Loads no torch."""

from __future__ import annotations

import json
import os

from . import config, pages, plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "control.toml"
POLICY = ("on-alarm", "then", "max-skips", "max-bad", "max-bad-share", "cool-down")
WARNINGS = ("warnings",)
DUMP = ("dump", "dump-steps", "dump-only")
KEYS = (*POLICY, *WARNINGS, *DUMP)
ASKED = "dump-asked"  # when a key of DUMP was given last: "next=3" twice is two times three steps
MOST_BYTES = 64 << 10


class NoReader(Exception):
    """This Python reads no TOML."""


def checked(settings: dict[str, Any]) -> dict[str, str]:
    """The same, as text. Raises config.UsageError for an unknown key, and for a value that the option does not take."""
    for key in settings:
        if key not in KEYS and key != ASKED:
            raise config.UsageError(f"{key!r} is not changed while a run trains; these are: {', '.join(KEYS)}")
    texts = {key: str(value) for key, value in settings.items()}
    config.load({key: value for key, value in texts.items() if key != ASKED}, environ={}, directory=os.devnull)
    return texts


def read(folder: str) -> dict[str, str]:
    """{} where there is no such file. Raises OSError, config.UsageError, NoReader."""
    path = os.path.join(folder, NAME)
    try:
        with plain_file.opened(path) as f:
            size = len(f.read(MOST_BYTES + 1))
    except FileNotFoundError:
        return {}
    if size > MOST_BYTES:
        raise config.UsageError(f"{path} is larger than {MOST_BYTES >> 10} KB")
    table = config.read_toml(path)
    if table is None:
        raise NoReader("reading TOML needs Python 3.11 or the package tomli")
    return checked(table)


def write(folder: str, settings: dict[str, str]) -> None:
    """Whole or not at all. Raises OSError."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    pages.write_whole(os.path.join(folder, NAME), "".join(lines).encode())


def taken(settings: config.Config) -> list[str]:
    """The keys that a run with these settings can change: what would cost something in each step has to be on from the
    start."""
    keys = list(POLICY)
    if settings.warnings != "off":
        keys += WARNINGS
    if settings.dump and not settings.dump_control and not settings.redact:
        keys += DUMP
    return keys
