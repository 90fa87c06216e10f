"""The words of a command that takes a few options and paths."""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

QUIET = {"-q": "--quiet", "--quiet": "--quiet"}


def usage(word: str, why: str, text: str) -> str:
    """What a command says of wrong words. text: its help, of which the first lines say how it is called."""
    lines = text.splitlines(keepends=True)
    call = itertools.takewhile(lambda line: line.startswith(("usage:", " ")), lines)
    return f"finitude {word}: {why}\n{''.join(call)}(finitude {word} --help shows the options)\n"


class Wrong(Exception):
    """What is wrong with the words, in one line."""


def near(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not among the known ones: which of them may be meant, or ""."""
    import difflib  # no command needs it whose words are right

    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


class Words:
    """paths: those that belong to no option. given: (option, value) as they come, of flags (option, "on"); values: the
    last value of each option."""

    def __init__(
        self,
        rest: Sequence[str],
        with_value: Mapping[str, str],
        flags: Mapping[str, str],
        *,
        before_command: bool = False,
    ):
        """with_value, flags: {as it is written: its long name}. before_command: the first path is a program, and all
        behind it is for the program, as is all behind the flag -m. Raises Wrong."""
        self.paths: list[str] = []
        self.given: list[tuple[str, str]] = []
        words, is_over = list(rest), False
        while words and not is_over:
            word = words.pop(0)
            name, eq, value = word.partition("=")
            if name in with_value:
                value = value if eq else words.pop(0) if words else ""
                if not value:
                    raise Wrong(f"{name} needs a value")
                self.given.append((with_value[name], value))
            elif word in flags:
                self.given.append((flags[word], "on"))
                is_over = before_command and word == "-m"
            elif name in flags:
                raise Wrong(f"{name} takes no value")
            elif word.startswith("-"):
                raise Wrong(f"unknown option {word}{near(word, [*with_value, *flags])}")
            else:
                self.paths.append(word)
                is_over = before_command
        self.paths += words
        self.values = dict(self.given)

    def has(self, option: str) -> bool:
        return option in self.values
