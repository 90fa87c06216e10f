"""Which words the program finitude-offline answers. Nothing large is imported here: it decides before anything else."""

from __future__ import annotations

import os

from ..base import plain_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS = ("report", "dump", "list", "scan", "policy", "pack", "unpack")
PACKED = b"PK\x03\x04"
TAPE = b"FitT"
OLD_TORCH = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"  # of torch.save before version 1.6
FOR_AGENT = "--for-agent"
NO_COLOUR = ("--no-colour", "--no-color")
QUIET = ("-q", "--quiet")
OF_DUMPS = ("--map", "--noise", "--join")  # options that `diff` has there only
HELP = ("-h", "--help")
VERSION = (["-V"], ["--version"])


def is_answered(words: Sequence[str]) -> bool:
    """One of WORDS, or `diff` of two traces or checkpoints, the version, the help of `replay`. Tapes need torch."""
    if words[:1] == ["diff"]:
        if any(word.partition("=")[0] in OF_DUMPS for word in words[1:]):
            return True
        paths = _paths_of_diff(words[1:])
        return len(paths) == 2 and (all(map(_is_trace, paths)) or all(map(_is_checkpoint, paths)))
    if [*words] in VERSION or _is_help_of_replay(words):
        return True
    return bool(words) and words[0] in WORDS and not is_for_agent(words) and not is_page(words)


def _paths_of_diff(words):
    """Without the options that program has; one that it does not have counts as a path."""
    return [word for word in words if word not in ("--json", *NO_COLOUR, *QUIET)]


def is_for_agent(words: Sequence[str]) -> bool:
    """`report --for-agent`, which agents/offline.py makes."""
    return words[:1] == ["report"] and FOR_AGENT in words


def is_page(words: Sequence[str]) -> bool:
    """`report --html`, into whose page the timeline of the run is put: cli/report_page.py."""
    is_help = any(word in HELP for word in words)
    return words[:1] == ["report"] and not is_help and any(word.partition("=")[0] == "--html" for word in words)


def as_asked(words: Sequence[str]) -> list[str]:
    """The same question as that program takes it."""
    if [*words] in VERSION:
        return ["--version"]
    return ["replay", "--help"] if _is_help_of_replay(words) else [*words]


def _is_help_of_replay(words):
    """With --with it has a help of its own."""
    is_with = any(word.partition("=")[0] == "--with" for word in words)
    return words[:1] == ["replay"] and not is_with and any(word in HELP for word in words[1:])


def _is_trace(path):
    if path.startswith("-") or os.path.basename(path) == "capsule.json":
        return False
    if os.path.isdir(path):
        return not os.path.exists(os.path.join(path, "capsule.json"))
    return plain_file.head(path, 4) not in (PACKED, TAPE)


def _is_checkpoint(path):
    """As kind_of in src/checkpoint/checkpoint.cpp has it."""
    if path.startswith("-"):
        return False
    if os.path.isdir(path):
        return os.path.exists(os.path.join(path, ".metadata"))
    if path.endswith((".safetensors", ".distcp")):
        return True
    front = plain_file.head(path, 512)
    return b"/data" in front[30:] if front.startswith(PACKED) else front.startswith(OLD_TORCH)
