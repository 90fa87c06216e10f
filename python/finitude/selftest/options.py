"""Options of `finitude selftest`."""

from __future__ import annotations

from ..base.option_words import near

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PHASES = ("forward", "backward", "optimizer", "data", "state")
VALUES = ("nan", "inf", "-inf")
HELP = """usage: finitude selftest [options] script.py [args]
       finitude selftest [options] -m module [args]
       finitude selftest [options] torchrun|accelerate|python|... [args]

Puts a NaN or Inf into a step of your own program and shows whether the recorder
finds it exactly there: the operation, source line, module, phase and step. The
program runs in processes of their own, from its beginning to that step: once to
list the places that it offers, then once for each place that is tried. Nothing
of it stays on: a program is only ever injected by this command.

options:
  --at-step N       the step, counted from 0 (3)
  --phase WORD      forward|backward|optimizer|data|state; may be given several
                    times (the first three)
  --op NAME         only this operation, e.g. log or aten::log
  --module NAME     only in this module, e.g. encoder.layers.0, and below it
  --line N          only at this line of the script, or FILE:N
  --tensor NAME     with --phase state: only this parameter or state
  --value WORD      nan|inf|-inf (nan)
  --places N        so many places, chosen at random among those that fit (3);
                    0: all of them
  --seed N          of that choice (0)
  --rank N          of several processes: the one to inject into (0)
  --list            list the places that fit, and end
  --seconds N       time for each run of the program (600)
  --json            the result as JSON
  -q, --quiet       only the exit code, failures, and --json where given
  --keep DIR        keep the reports of the runs there

Exit code: 0 every value that reached a loss, gradient or weight was found where
it was put in, 1 one was not, 2 usage, 4 it cannot be done here (no such place,
or the program ended before that step).
"""


class UsageError(Exception):
    pass


class Options:
    def __init__(self):
        self.at_step, self.places, self.seed, self.rank, self.seconds = 3, 3, 0, 0, 600
        self.phase, self.value, self.keep = [], "nan", ""
        self.op = self.module = self.line = self.tensor = ""
        self.list = self.json = self.quiet = False
        self.target = []  # as given: ["script.py", ...], ["-m", "module", ...]

    def phases(self) -> list[str]:
        return self.phase or ["forward", "backward", "optimizer"]


_NUMBERS = ("at_step", "places", "seed", "rank", "seconds")
_FLAGS = ("list", "json", "quiet")
_WORDS = {"phase": PHASES, "value": VALUES}


def _set(options, name, value):
    if name in _NUMBERS:
        if not value.isdigit():
            raise UsageError(f"--{name.replace('_', '-')} takes a whole number, not {value!r}")
        return setattr(options, name, int(value))
    if name in _WORDS and value not in _WORDS[name]:
        raise UsageError(f"--{name} is one of {', '.join(_WORDS[name])}, not {value!r}")
    if name == "phase":
        return options.phase.append(value)
    return setattr(options, name, value)


def parse(rest: Sequence[str]) -> Options:
    """Raises UsageError."""
    options, i = Options(), 0
    known = [n for n in vars(options) if n != "target"]
    while i < len(rest) and rest[i].startswith("-") and rest[i] != "-m":
        if rest[i] == "--":
            i += 1
            break
        word, eq, value = ("--quiet" if rest[i] == "-q" else rest[i]).partition("=")
        name = word[2:].replace("-", "_") if word.startswith("--") else ""
        if name not in known:
            raise UsageError(f"unknown option {word}{near(word, ['--' + n.replace('_', '-') for n in known])}")
        if name in _FLAGS:
            if eq:
                raise UsageError(f"{word} takes no value")
            setattr(options, name, True)
        else:
            if not eq:
                i += 1
                if i >= len(rest):
                    raise UsageError(f"{word} needs a value")
                value = rest[i]
            _set(options, name, value)
        i += 1
    options.target = list(rest[i:])
    if not options.target or options.target == ["-m"]:
        raise UsageError("test what? finitude selftest [options] script.py [args]")
    if options.tensor and "state" not in options.phases():
        raise UsageError("--tensor goes with --phase state")
    return options
