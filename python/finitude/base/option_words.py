"""The words of a command that takes a few options and paths."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUIET = {"-q": "--quiet", "--quiet": "--quiet"}


class Wrong(Exception):
    """What is wrong with the words, in one line."""


class Words:
    """paths: those that belong to no option. values: {option: value}, of flags "on"."""

    def __init__(self, rest: Sequence[str], with_value: Mapping[str, str], flags: Mapping[str, str]):
        """with_value, flags: {as it is written: its long name}. Raises Wrong."""
        self.paths: list[str] = []
        self.values: dict[str, str] = {}
        words = list(rest)
        while words:
            word = words.pop(0)
            name, eq, value = word.partition("=")
            if name in with_value:
                value = value if eq else words.pop(0) if words else ""
                if not value:
                    raise Wrong(f"{name} needs a value")
                self.values[with_value[name]] = value
            elif word in flags:
                self.values[flags[word]] = "on"
            elif word.startswith("-"):
                raise Wrong(f"unknown option {word}")
            else:
                self.paths.append(word)

    def has(self, option: str) -> bool:
        return option in self.values
