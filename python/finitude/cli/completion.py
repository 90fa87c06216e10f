"""`finitude completion bash|zsh|fish`, made from the tables of words and options."""

from __future__ import annotations

import re

from ..agents.options import OPTIONS as MCP
from ..doctor.options import OPTIONS as DOCTOR, VALUES as DOCTOR_VALUES
from ..export.options import FORMATS, OPTIONS as EXPORT
from ..live.options import OPTIONS as LIVE
from ..rows.options import FLAGS as ROWS_FLAGS, OPTIONS as ROWS
from ..selftest.options import HELP as SELFTEST, PHASES, VALUES
from .ctl_options import OPTIONS as CTL
from .table import DIFF_FLAGS, DIFF_OPTIONS, FLAGS, OPTIONS, REPLAY_FLAGS, REPLAY_OPTIONS, WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FILE, VALUE = "file", "value"  # what an option takes, where it is none of some words
CHOICES = {
    "--on-alarm": "stop skip warn raise rollback",
    "--then": "skip lower-rate rollback stop raise",
    "--level": "gate tape trace",
    "--stream-gradients": "auto on off",
    "--warnings": "all off growth spike outlier vanishing scale dead clipping norm no-learning headroom "
    "vanishing-depth exploding-depth logits attention dropped",
    "--checkpoints": "warn refuse quarantine off",
    "--dtype": "float32 float64 bfloat16",
    "--device": "cpu cuda",
    "--phase": " ".join(PHASES),
    "--value": " ".join(VALUES),
    "--to": " ".join(FORMATS),
}
PATHS = (
    "--root",
    "--link",
    "--report",
    "--runs",
    "--rules",
    "--config",
    "--html",
    "--library",
    "--save-tensors",
    "--script",
    "--skip-list",
    "--skip-rows",
    "--keep",
    "--output",
)
SHORT = {"--quiet": "q", "--output": "o"}


def _described(options, flags):
    """{option: None of a flag, FILE, VALUE, or the words that it takes}"""
    kinds = {}
    for option in options:
        kind = FILE if option in PATHS else CHOICES[option].split() if option in CHOICES else VALUE
        kinds[option] = None if option in flags else kind
    return kinds


POLICY = ("--on-alarm", "--then", "--max-skips", "--max-bad", "--max-bad-share", "--cool-down")
_SELFTEST = tuple(dict.fromkeys(re.findall(r"^  (?:-q, )?(--[a-z-]+)", SELFTEST, re.M)))
TREE = {
    "run": _described(OPTIONS, FLAGS),
    "report": _described(
        ("--html", "--json", "--for-agent", "--no-colour", "--quiet"),
        ("--json", "--for-agent", "--no-colour", "--quiet"),
    ),
    "replay": _described(REPLAY_OPTIONS, REPLAY_FLAGS),
    "diff": _described((*DIFF_FLAGS, *DIFF_OPTIONS, "--map", "--noise", "--join"), (*DIFF_FLAGS, "--join")),
    "doctor": _described(DOCTOR, [option for option in DOCTOR if option not in DOCTOR_VALUES]),
    "selftest": _described(_SELFTEST, ("--list", "--json", "--quiet")),
    "pack": _described(("--quiet",), ("--quiet",)),
    "unpack": _described(("--max-mb",), ()),
    "rows": _described(ROWS, ROWS_FLAGS),
    "scan": _described(("--json", "--quiet"), ("--json", "--quiet")),
    "dump": _described(("--growth", "--json", "--quiet"), ("--growth", "--json", "--quiet")),
    "list": _described(("--json", "--quiet"), ("--json", "--quiet")),
    "policy": _described((*POLICY, "--json", "--quiet"), ("--json", "--quiet")),
    "live": _described(LIVE, ("--quiet",)),
    "export": _described(EXPORT, ("--quiet",)),
    "ctl": _described(CTL, CTL),
    "mcp": _described(MCP, ("--skill",)),
    "completion": {},
}
assert TREE.keys() == WORDS.keys()


def bash() -> str:
    """Of an option that takes a value the value, of a word its options, else files."""
    lines = [
        "_finitude() {",
        "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word=${COMP_WORDS[1]}",
        "  COMPREPLY=()",
        f'  if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "{" ".join(WORDS)} --help --version" -- "$cur"))',
        "    return; fi",
        '  case "$word $prev" in',
    ]
    for word, options in TREE.items():
        for option, kind in options.items():
            if isinstance(kind, list):
                lines.append(f'    "{word} {option}") COMPREPLY=($(compgen -W "{" ".join(kind)}" -- "$cur")); return;;')
            elif kind == VALUE:
                lines.append(f'    "{word} {option}") return;;')
    lines += [
        f'    "completion "*) COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$cur")); return;;',
        "  esac",
        '  case "$word $cur" in',
    ]
    for word, options in TREE.items():
        lines.append(f'    "{word} -"*) COMPREPLY=($(compgen -W "{" ".join([*options, "--help"])}" -- "$cur"));;')
    lines += [
        '    *) COMPREPLY=($(compgen -f -- "$cur"));;',
        "  esac",
        "}",
        "complete -o filenames -F _finitude finitude",
    ]
    return "\n".join(lines) + "\n"


def _of_zsh(option, kind):
    name = f"'*{option}" if kind is not None else "'" + option
    if kind is None:
        return name + "'"
    action = "_files" if kind == FILE else f"({' '.join(kind)})" if isinstance(kind, list) else " "
    return f"{name}=:{option[2:]}:{action}'"


def zsh() -> str:
    """To be evaluated after compinit, or as the file _finitude of a folder in fpath."""
    lines = [
        "#compdef finitude",
        "_finitude() {",
        "  if (( CURRENT == 2 )); then",
        "    local -a commands",
        "    commands=(",
    ]
    lines += [f"      '{word}:{says}'" for word, says in WORDS.items()]
    lines += [
        "      '--help:show all commands and options'",
        "      '--version:print the version'",
        "    )",
        "    _describe -t commands command commands",
        "    return",
        "  fi",
        "  shift words; (( CURRENT-- ))",
        '  case "$words[1]" in',
    ]
    for word, options in TREE.items():
        described = [_of_zsh(option, kind) for option, kind in options.items()]
        described += [f"'-{SHORT[option]}'" for option in options if option in SHORT] + ["'(- *)--help'"]
        if word == "completion":
            described.append(f"'1:shell:({' '.join(SHELLS)})'")
        elif word in ("run", "doctor", "selftest"):  # what follows the script is the script's own
            described += ["'-m:module: '", "'1:script:_files'", "'*:: :_files'"]
        else:
            described.append("'*:path:_files'")
        lines.append(f"    {word}) _arguments {' '.join(described)};;")
    lines += [
        "  esac",
        "}",
        'if [ "$funcstack[1]" = _finitude ]; then _finitude "$@"; else compdef _finitude finitude; fi',
    ]
    return "\n".join(lines) + "\n"


def fish() -> str:
    """A file of ~/.config/fish/completions."""
    lines = [
        "function __finitude_word",
        "  set -l words (commandline -opc)",
        '  test (count $words) -gt 1; and test "$words[2]" = "$argv[1]"',
        "end",
        "function __finitude_first",
        "  test (count (commandline -opc)) -eq 1",
        "end",
        "complete -c finitude -n __finitude_first -f",
        "complete -c finitude -n __finitude_first -l help -d 'show all commands and options'",
        "complete -c finitude -n __finitude_first -l version -d 'print the version'",
    ]
    lines += [f"complete -c finitude -n __finitude_first -f -a {word} -d '{says}'" for word, says in WORDS.items()]
    for word, options in TREE.items():
        start = f"complete -c finitude -n '__finitude_word {word}'"
        for option, kind in options.items():
            short = f" -s {SHORT[option]}" if option in SHORT else ""
            takes = (
                f" -x -a '{' '.join(kind)}'" if isinstance(kind, list) else {FILE: " -r -F", VALUE: " -x"}.get(kind, "")
            )
            lines.append(f"{start}{short} -l {option[2:]}{takes}")
        lines.append(f"{start} -l help")
    lines.append(f"complete -c finitude -n '__finitude_word completion' -f -a '{' '.join(SHELLS)}'")
    return "\n".join(lines) + "\n"


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
