"""Words about what a run left behind. What only reads is answered by the program finitude-offline; the others compute,
which needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ..base import option_words, programs, screen
from . import replay_ranks, replay_together, standard_streams, without_python
from .table import DIFF_FLAGS, DIFF_OPTIONS, QUIET, REPLAY_FLAGS, REPLAY_OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4


def _printable(text):
    """What a file from elsewhere says, for a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def read(word: str, rest: Sequence[str]) -> int:
    """The words in without_python.WORDS, and `diff` of two traces, checkpoints or statistics."""
    program = programs.path_of(programs.OFFLINE)
    try:
        sys.stdout.flush()
        code = subprocess.run(["finitude", word, *rest], executable=program).returncode
    except OSError as e:
        sys.stderr.write(f"finitude: cannot start {program}: {e.strerror}\n")
        return EXIT_CANNOT
    if code < 0:
        standard_streams.end_of(-code)
    return code


def newest(what: str, count: int, quiet: bool) -> tuple[list[str], int]:
    """(so many paths, the older first, or none; exit code) of what is read where no path was named. what: "run",
    "capsule" or "recording". Standard error says which they are, or what was looked at."""
    program = programs.path_of(programs.OFFLINE)
    words = ["finitude", "newest", what, str(count), *(["--quiet"] if quiet else [])]
    sys.stdout.flush()
    try:
        done = subprocess.run(words, executable=program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as e:
        sys.stderr.write(f"finitude: cannot start {program}: {e.strerror}\n")
        return [], EXIT_CANNOT
    return [os.fsdecode(path) for path in done.stdout.split(b"\0")[:-1]], done.returncode


def _capsule_of(rest):
    """(the path among the words of a replay, or None; whether an option is wrong: unknown, or without its value)"""
    words, wrong = [*rest], False
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return word, wrong
        wrong |= word.partition("=")[0] not in (*REPLAY_OPTIONS, *REPLAY_FLAGS, *without_python.HELP)
        if word not in (*REPLAY_FLAGS, *without_python.HELP) and "=" not in word:
            wrong |= not words
            words = words[1:]
    return None, wrong


def _with_player(rest, quiet):
    """For --stress, which starts the program finitude-replay on each core."""
    if "--stress" not in rest:
        return rest
    words = ["--no-progress"] if quiet else []
    return [f"--player={programs.path_of(programs.PLAYER)}", *words, *rest]


OUTCOMES = ("reproduced", "not reproduced")  # by exit code


def replay(rest):
    """In this process, which has what Python registered; the program finitude-replay needs neither Python nor us."""
    quiet, as_json = any(word in QUIET for word in rest), "--json" in rest
    capsule, is_wrong = _capsule_of(rest)
    is_wrong |= any(word in without_python.HELP for word in rest)  # the engine answers, or --with
    together = replay_together.is_asked() and not is_wrong
    if capsule is None and not is_wrong and not together:
        found, code = newest("capsule", 1, quiet)
        if not found:
            return code
        capsule = found[0]
        rest = [*rest, capsule]
    if not together and any(word.partition("=")[0] == "--with" for word in rest):
        from . import trial

        return trial.main(rest)
    rest = [word for word in rest if word != "--json" and word not in QUIET]
    ranks = None
    if capsule is not None and not is_wrong:
        try:
            ranks = replay_ranks.manifest_of(capsule)
        except (OSError, ValueError) as e:
            sys.stderr.write(f"finitude: {_printable(capsule)} cannot be read: {_printable(str(e))}\n")
            return EXIT_INPUT
    if as_json and any(word.partition("=")[0] == "--break" for word in rest):
        sys.stderr.write(
            "finitude: --break is a prompt: leave --json out\n(finitude replay --help shows the options)\n"
        )
        return EXIT_USAGE
    import torch  # the engine's libraries

    from .. import _native
    from ..capsules import libraries

    try:
        rest = libraries.imported(rest)
        if together:
            return replay_together.main(capsule, ranks, rest, _native.replay_command, quiet, as_json)
        rest = _with_player(rest, quiet)
        if ranks is not None and capsule is not None:
            return replay_ranks.each_alone(capsule, ranks, rest, _native.replay_command, quiet, as_json)
        code, out, err, stopped = _native.replay_command(rest)
    except libraries.Cannot as e:
        sys.stderr.write(f"finitude: {e}\n")
        return e.code
    if as_json and code < len(OUTCOMES):
        document = {"schema": 1, "capsule": capsule, "outcome": OUTCOMES[code], "text": out, "notes": err.splitlines()}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    elif not quiet:
        sys.stdout.write(out)
    sys.stdout.flush()
    for line in (
        err.splitlines(keepends=True) if code != EXIT_USAGE else [err]
    ):  # of a usage error the second line is a hint
        if not quiet or code >= len(OUTCOMES):
            sys.stderr.write(f"finitude: {line}")
    if stopped is not None and any(word.partition("=")[0] == "--break" for word in rest):
        import code as console

        inputs, outputs = stopped
        console.interact(
            "inputs, outputs: the tensors of this call by name. End with Ctrl-D.",
            exitmsg="",
            local={"inputs": inputs, "outputs": outputs, "torch": torch},
        )
    return code


DIFF_USAGE = """usage: finitude diff [A B] [--json] [--quiet] [--threads N] [--allow NAMESPACE]
                     [--library FILE.so] [--import MODULE] [--memory-mb N]
                     [--map FILE] [--noise DUMP] [--join]
A and B are two capsules, or two reports (or directories of runs) made with
--level trace, or one of each; without them, the newest two in finitude-runs.
Or two checkpoints (torch.save, safetensors, DCP), compared tensor by tensor.
  --json              the whole outcome as JSON
  -q, --quiet         only the exit code, failures, and --json where given
  --no-colour         no colours, also on a terminal
  --threads N         both are replayed with so many threads; by default as many
                      as each had
  --allow NAMESPACE   operators of this library may be called in a replay; aten
                      always
  --library FILE.so   load this library of operators first; those that it
                      registers may be called too
  --import MODULE     import this Python module first, likewise
  --map FILE          of two dumps: names of modules in A and in B, a line for
                      each, `encoder.* = enc.*`
  --noise DUMP        of two dumps: one of a repeat of A; what those differ by
                      is noise
  --join              of two dumps: the parts that the ranks hold, and
                      micro-batches, are put together first
  --memory-mb N       values of A that are held to compare them element by
                      element (1024); beyond, statistics
Exit codes: 0 they do not part (rounding noise aside), 1 they part, 2 usage,
3 unreadable or corrupt, 4 cannot be compared here.
"""


_DIFF_OPTIONS = {name: name for name in DIFF_OPTIONS}
_DIFF_FLAGS = {**option_words.QUIET, **{name: name for name in (*DIFF_FLAGS, *without_python.NO_COLOUR)}}


def _diff_number(words, option, otherwise, least, most):
    text = words.values.get(option)
    if text is None:
        return otherwise
    if not (text.isdecimal() and len(text) < 16 and least <= int(text) <= most):
        raise option_words.Wrong(f"{option} takes a number from {least} to {most}, not {text!r}")
    return int(text)


def diff(rest):
    """Where two steps part: the first call whose outcome rounding does not explain."""
    if any(word in without_python.HELP for word in rest):
        sys.stdout.write(DIFF_USAGE)
        return 0
    try:
        words = option_words.Words(rest, _DIFF_OPTIONS, _DIFF_FLAGS)
        threads = _diff_number(words, "--threads", 0, 1, 1024)
        memory = _diff_number(words, "--memory-mb", 1024, 0, (1 << 24) - 1)
        if len(words.paths) not in (0, 2):
            raise option_words.Wrong(f"takes two paths, A and B, or none; {len(words.paths)} given")
    except option_words.Wrong as e:
        sys.stderr.write(option_words.usage("diff", str(e), DIFF_USAGE))
        return EXIT_USAGE
    paths, quiet = words.paths, words.has("--quiet")
    if not paths:
        paths, code = newest("recording", 2, quiet)
        if not paths:
            return code
        if without_python.is_answered(["diff", *paths]):
            return read(
                "diff", [word for word in rest if word in ("--json", *QUIET, *without_python.NO_COLOUR)] + paths
            )
    try:
        import torch  # noqa: F401  the engine's libraries
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        return read("diff", rest)  # which compares the statistics of capsules

    from .. import _native
    from ..capsules import libraries

    try:
        namespaces = ["aten", *(value for option, value in words.given if option == "--allow")]
        for option, value in words.given:
            if option in ("--library", "--import"):
                namespaces += (libraries.load if option == "--library" else libraries.import_)(value)
        code, why, document = _native.compare(paths[0], paths[1], namespaces, threads, memory << 20)
    except libraries.Cannot as e:
        sys.stderr.write(f"finitude: {e}\n")
        return e.code
    except UnicodeDecodeError:
        sys.stderr.write("finitude: a text in it is not UTF-8: it is damaged, or made by something else\n")
        return EXIT_INPUT
    if why:
        sys.stderr.write(f"finitude: {_printable(why)}\n")
    elif words.has("--json"):
        sys.stdout.write(document + "\n")
    elif not quiet:
        colour = screen.has_colour() and not any(map(words.has, without_python.NO_COLOUR))
        sys.stdout.write(
            _native.render_comparison(document, colour, screen.columns(otherwise=100), screen.has_unicode())
        )
    return code


def doctor(rest):
    from ..doctor import command

    return command.main(rest, lambda quiet: next(iter(newest("run", 1, quiet)[0]), None))


def export(rest):
    from ..export import command

    return command.main(rest, lambda quiet: newest("run", 1, quiet), write_dcp)


def write_dcp(path, output):
    from . import export_dcp

    return export_dcp.write(path, output)


def rows(rest):
    from ..rows import command

    return command.main(rest, lambda quiet: newest("run", 1, quiet))


def ctl(rest):
    from . import ctl as command

    return command.main(rest, lambda quiet: newest("run", 1, quiet))


def live(rest):
    from ..live import command

    return command.main(rest)
