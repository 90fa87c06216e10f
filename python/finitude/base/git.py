"""What is checked out of a git repository, read from its files."""

from __future__ import annotations

import contextlib
import os
import re


def head(directory: str) -> dict[str, str | None] | None:
    """{"commit", "branch"} of the repository around a directory: commit is None before the first, branch where none is
    checked out. None where there is no repository. Starts no process."""
    while not os.path.exists(os.path.join(directory, ".git")):
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent
    try:
        own = os.path.join(directory, ".git")
        if os.path.isfile(own):  # of a worktree or a submodule: the name of the folder
            own = os.path.normpath(os.path.join(directory, _line(own).removeprefix("gitdir: ")))
        shared = os.path.join(own, "commondir")
        shared = os.path.normpath(os.path.join(own, _line(shared))) if os.path.isfile(shared) else own
        head = _line(os.path.join(own, "HEAD"))
        if not head.startswith("ref: "):
            return {"commit": _commit(head), "branch": None} if _commit(head) else None
        branch = head[5:]
        parts = branch.split("/")
        if parts[0] != "refs" or not set(parts).isdisjoint(("", ".", "..")) or not branch.isprintable():
            return None  # git makes no such name
        loose = os.path.join(shared, *parts)
        return {
            "commit": _commit(_line(loose))
            if os.path.isfile(loose)
            else _packed(os.path.join(shared, "packed-refs"), branch),
            "branch": branch,
        }
    except (OSError, ValueError):
        return None


def _commit(text):
    """The text, if it is the name of a commit; else None."""
    return text if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", text) else None


def _line(file):
    with open(file, encoding="utf-8") as f:
        return f.read(4096).strip()


def _packed(file, branch):
    """Its commit in the one file where git puts those of many branches; None where it has none yet."""
    with contextlib.suppress(FileNotFoundError), open(file, encoding="utf-8") as f:
        for line in f:
            commit, _, name = line.strip().partition(" ")
            if name == branch:
                return _commit(commit)
    return None
