"""What `finitude run TARGET ...` starts: a script or module in this process, or a command that starts others."""

from __future__ import annotations

import os
import re
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
# Modules that only start other processes.
LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
)
PYTHON_NAME = re.compile(r"(python|pypy)(\d+(\.\d+)?)?$")
# Options of python that take a value in the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_KEEP_US_OUT = {"I": "-I", "E": "-E", "S": "-S"}


class Target:
    """kind: "script", "module", "command", or "missing" for a launcher that is not there. name: path, module, or the
    command's first word. obstacle: why nothing that a command starts can be watched, or ""."""

    def __init__(self, kind: str, name: str, arguments: Iterable[str], obstacle: str = ""):
        self.kind, self.name, self.arguments, self.obstacle = kind, name, list(arguments), obstacle


def _module(name, arguments):
    if name in LAUNCHER_MODULES:
        return Target("command", sys.executable, ["-m", name, *arguments])
    return Target("module", name, arguments)


def _which(word):
    """The program a shell would start; else one that lies beside this Python (an environment that is not activated)."""
    if os.sep in word:
        return word if os.path.isfile(word) and os.access(word, os.X_OK) else None
    return shutil.which(word) or shutil.which(word, path=os.path.dirname(os.path.abspath(sys.executable)))


def _is_this_python(path):
    return os.path.dirname(os.path.abspath(path)) == os.path.dirname(
        os.path.abspath(sys.executable)
    ) and os.path.realpath(path) == os.path.realpath(sys.executable)


def _obstacle(options):
    """The options that make a Python start without what our environment variables say."""
    letters = {c for o in options if re.fullmatch(r"-[A-VY-Za-z][A-Za-z]*", o) for c in o[1:]}
    words = [_KEEP_US_OUT[c] for c in _KEEP_US_OUT if c in letters]
    if not words:
        return ""
    return f"python {' '.join(words)} reads no PYTHONPATH or runs no sitecustomize, which is how finitude gets into it"


def _python(path, arguments):
    """`python ...`: in this process where that is the same, else as a command."""
    options, i = [], 0
    while i < len(arguments) and arguments[i].startswith("-") and arguments[i] not in ("-", "-m", "-c"):
        if re.fullmatch(r"-[A-Za-z]*[mc]", arguments[i]):  # e.g. -um
            options.append(arguments[i][:-1])
            break
        options.append(arguments[i])
        i += 2 if arguments[i] in _WITH_VALUE else 1
    rest = arguments[i:]
    if not options and _is_this_python(path):
        if len(rest) > 1 and rest[0] == "-m":
            return _module(rest[1], rest[2:])
        if rest and not rest[0].startswith("-"):
            return Target("script", rest[0], rest[1:])
    return Target("command", path, arguments, _obstacle(options))


def resolve(name: str, arguments: Sequence[str], is_module: bool = False) -> Target:
    if is_module:
        return _module(name, arguments)
    found = _which(name)
    if found and PYTHON_NAME.match(os.path.basename(name)):
        return _python(found, list(arguments))
    if name.endswith((".py", ".pyc", ".pyz", ".zip")) or os.path.isdir(name):
        return Target("script", name, arguments)
    if os.path.isfile(name) and not (os.sep in name and found):
        return Target("script", name, arguments)  # a bare word that is a file here is meant as Python would mean it
    if found:
        return Target("command", found, arguments)
    return Target("missing" if name in LAUNCHERS else "script", name, arguments)
