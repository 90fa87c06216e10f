"""Options of `finitude doctor`."""

from __future__ import annotations

from ..base import option_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = (
    "--json",
    "--quiet",
    "--static",
    "--steps",
    "--seconds",
    "--twice",
    "--repeat",
    "--random",
    "--rules",
    "--show-output",
    "--checks",
    "--ranks",
)
VALUES = ("--steps", "--seconds", "--rules", "--repeat")
HELP = """usage: finitude doctor [options] script.py [args]        before a run
       finitude doctor [options] -m module [args]
       torchrun ... -m finitude doctor [options] script.py    of all ranks
       finitude doctor [options] [RUN|CAPSULE]           of what a run left: its
                  directory, a report, a ring, a capsule (a folder, or one file
                  made by finitude pack); of nothing: the newest run
       finitude doctor [options] LOG|DIR                 of what other tools
                  logged: trainer_state.json, metrics.csv, TensorBoard events,
                  lines of JSON, what the Hugging Face Trainer prints
       torchrun ... -m finitude doctor --ranks [options]   of the machines

Looks for what goes wrong in trainings: at the source, which is parsed and not
run; at the first steps, for which the script runs in a process of its own that
is ended when they are over; at what a run left; at the curves in logs.
docs/doctor.md has the checks.

options:
  --json            the findings as JSON
  -q, --quiet       only the exit code, failures, and --json where given
  --static          only look at the source: nothing is run; of a capsule, only
                    read it: nothing is replayed
  --steps N         steps of one optimizer to look at (2)
  --seconds N       time for them (60); what was seen until then counts
  --twice           run the first steps twice and compare losses and gradients
  --repeat N        the same N times
  --random          list who draws random numbers in the first steps: operation
                    or function, generator, line, and how often in each step
  --rules FILE      checks of your own, a Python file
                    (docs/recipes/add-a-check.md); may be given several times
  --show-output     show on stderr what the script prints in its first steps
  --checks          list the checks and end
  --ranks           in each process that a launcher starts: does its device
                    compute and remember right, do all ranks come to the same
                    sums, how long that takes, how far their clocks differ

Exit code: 0 no finding is bad, 1 one is, 2 usage, 3 the input cannot be read,
4 it cannot be done here.
"""


_WITH_VALUE = {name: name for name in VALUES}
_FLAGS = {**option_words.QUIET, "-m": "-m", **{name: name for name in OPTIONS if name not in VALUES}}


class Options:
    def __init__(self):
        self.json = self.quiet = self.static = self.twice = self.show_output = self.checks = self.module = (
            self.ranks
        ) = False
        self.random, self.repeat = False, 1
        self.steps, self.seconds, self.rules, self.target, self.arguments = 2, 60.0, [], None, []


def _number(option, text):
    try:
        number = int(text) if option in ("--steps", "--repeat") else float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise option_words.Wrong(f"{option} takes a number above 0, not {text!r}")
    return number


def parse(words: Sequence[str]) -> Options:
    """target: None where none is given. Raises option_words.Wrong."""
    options, said = Options(), option_words.Words(words, _WITH_VALUE, _FLAGS, before_command=True)
    for option, value in said.given:
        if option == "-m":
            options.module = True
        elif option == "--rules":
            options.rules.append(value)
        else:
            name = option[2:].replace("-", "_")
            setattr(options, name, _number(option, value) if option in VALUES else True)
    if options.twice:
        options.repeat = max(2, options.repeat)
    if said.paths:
        options.target, options.arguments = said.paths[0], said.paths[1:]
    elif options.module:
        raise option_words.Wrong("-m needs the name of a module")
    return options
