"""Words about what a run left behind. What only reads is answered by the program finitude-offline; these unpack for it,
or compute, which needs torch."""

from __future__ import annotations

import os
import subprocess
import sys

from ..base import programs
from . import standard_streams, without_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4


def _printable(text):
    """What a file from elsewhere says, for a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def read(word: str, rest: Sequence[str]) -> int:
    """`report`, `dump`, `list`, and `diff` of two traces. A packed capsule is unpacked for as long."""
    from ..capsules import pack

    program = programs.path_of(programs.OFFLINE)
    try:
        at = without_python.packed_at([word, *rest])
        packed = [rest[at - 1]] if at is not None else []
        with pack.unpacked(packed) as (folders, _):
            words = [*rest]
            if at is not None:
                words[at - 1 : at] = [folders[0], f"--called={packed[0]}"]
            sys.stdout.flush()
            code = subprocess.run(["finitude", word, *words], executable=program).returncode
    except pack.Refused as e:
        sys.stderr.write(f"finitude: {e}\n")
        return EXIT_INPUT
    except OSError as e:
        sys.stderr.write(f"finitude: cannot start {program}: {e.strerror}\n")
        return EXIT_CANNOT
    if code < 0:
        standard_streams.end_of(-code)
    return code


def replay(rest):
    """In this process, which has what Python registered; the program finitude-replay needs neither Python nor us."""
    if any(word.partition("=")[0] == "--with" for word in rest):
        from . import trial

        return trial.main(rest)
    import torch  # the engine's libraries

    from .. import _native
    from ..capsules import libraries, pack

    try:
        rest = libraries.imported(rest)
        with pack.unpacked(rest) as (words, told):
            code, out, err, stopped = _native.replay_command(["--help"] if "-h" in rest or "--help" in rest else words)
            out, err = told(out), told(err)
    except pack.Refused as e:
        sys.stderr.write(f"finitude: {e}\n")
        return EXIT_INPUT
    except libraries.Cannot as e:
        sys.stderr.write(f"finitude: {e}\n")
        return e.code
    sys.stdout.write(out)
    sys.stdout.flush()
    for line in (
        err.splitlines(keepends=True) if code != EXIT_USAGE else [err]
    ):  # of a usage error the second line is a hint
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


DIFF_USAGE = """usage: finitude diff A B [--json] [--threads N] [--allow NAMESPACE] [--library FILE.so]
                         [--import MODULE] [--memory-mb N]
A and B are two capsules, or two reports (or directories of runs) made with --level trace, or one of each.
  --json              the whole outcome as JSON
  --threads N         both are replayed with so many threads; as many as each had by default
  --allow NAMESPACE   operators of this library may be called in a replay; aten always
  --library FILE.so   load this library of operators first; those that it registers may be called too
  --import MODULE     import this Python module first, likewise
  --memory-mb N       values of A that are held to compare them element by element (1024); beyond, statistics
Exit codes: 0 they do not part (rounding noise aside), 1 they part, 2 usage, 3 unreadable or corrupt, 4 cannot be
compared here.
"""


def diff(rest):
    """Where two steps part: the first call whose outcome rounding does not explain."""
    paths, as_json, threads, memory, namespaces, libraries_named, words = [], False, 0, 1024, ["aten"], [], [*rest]
    while words:
        word = words.pop(0)
        name, eq, value = word.partition("=")
        if name in ("--threads", "--allow", "--memory-mb", "--library", "--import") and not eq and words:
            value = words.pop(0)
        if word in ("-h", "--help"):
            sys.stdout.write(DIFF_USAGE)
            return 0
        if word == "--json":
            as_json = True
        elif word in without_python.NO_COLOUR:
            pass  # it has none
        elif name == "--allow" and value:
            namespaces.append(value)
        elif name in ("--library", "--import") and value:
            libraries_named.append((name, value))
        elif name == "--threads" and value.isdecimal() and 0 < int(value) <= 1024:
            threads = int(value)
        elif name == "--memory-mb" and value.isdecimal() and int(value) < 1 << 24:
            memory = int(value)
        elif word.startswith("-"):
            sys.stderr.write(f"finitude diff: {word} is no option, or lacks its value\n{DIFF_USAGE}")
            return EXIT_USAGE
        else:
            paths.append(word)
    if len(paths) != 2:
        sys.stderr.write(DIFF_USAGE)
        return EXIT_USAGE
    import torch  # noqa: F401  the engine's libraries

    from .. import _native
    from ..capsules import libraries, pack

    try:
        for name, value in libraries_named:
            namespaces += (libraries.load if name == "--library" else libraries.import_)(value)
        with pack.unpacked(paths) as (folders, told):
            code, why, document = _native.compare(folders[0], folders[1], namespaces, threads, memory << 20)
            why, document = told(why), told(document)
    except pack.Refused as e:
        sys.stderr.write(f"finitude: {e}\n")
        return EXIT_INPUT
    except libraries.Cannot as e:
        sys.stderr.write(f"finitude: {e}\n")
        return e.code
    except UnicodeDecodeError:
        sys.stderr.write("finitude: a text in it is not UTF-8: it is damaged, or made by something else\n")
        return EXIT_INPUT
    if why:
        sys.stderr.write(f"finitude: {_printable(why)}\n")
    elif as_json:
        sys.stdout.write(document + "\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        sys.stdout.write(_native.render_comparison(document, colour, 100, unicode))
    return code


def doctor(rest):
    from ..doctor import command

    return command.main(rest)


def completion(rest):
    from ..doctor.command import OPTIONS as DOCTOR
    from .table import OPTIONS, REPLAY_OPTIONS, WORDS

    sys.stdout.write(
        "_finitude() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        '  case "$prev" in\n'
        '    --on-alarm) COMPREPLY=($(compgen -W "stop skip warn raise rollback" -- "$cur")); return;;\n'
        '    --level) COMPREPLY=($(compgen -W "gate tape trace" -- "$cur")); return;;\n'
        '    --dtype) COMPREPLY=($(compgen -W "float32 float64 bfloat16" -- "$cur")); return;;\n'
        '    --device) COMPREPLY=($(compgen -W "cpu cuda" -- "$cur")); return;;\n  esac\n'
        f'  if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "{" ".join(WORDS)}" -- "$cur"))\n'
        f'  elif [[ "${{COMP_WORDS[1]}}" == replay && "$cur" == -* ]]; then COMPREPLY=($(compgen -W '
        f'"{" ".join(REPLAY_OPTIONS)}" -- "$cur"))\n'
        f'  elif [[ "$cur" == -* && "${{COMP_WORDS[1]}}" == doctor ]]; then COMPREPLY=($(compgen -W '
        f'"{" ".join(DOCTOR)}" -- "$cur"))\n'
        f'  elif [[ "$cur" == -* ]]; then COMPREPLY=($(compgen -W "{" ".join(OPTIONS)}" -- "$cur"))\n'
        '  else COMPREPLY=($(compgen -f -- "$cur")); fi\n}\ncomplete -F _finitude finitude\n'
    )
    return 0
