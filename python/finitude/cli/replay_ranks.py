"""`finitude replay RUN` of several ranks: the capsule of each rank, one after another, in this process."""

from __future__ import annotations

import json
import os
import sys

from ..capsules import step_manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
# of the capsule of one rank
OF_ONE = (
    "--report",
    "--step-through",
    "--stop-at",
    "--break",
    "--save-tensors",
    "--script",
    "--stress",
    "--perturb",
)
OUTCOMES = ("reproduced", "not reproduced")  # by exit code


def manifest_of(path: str) -> tuple[str, Mapping[str, Any]] | None:
    """(where it lies, manifest) of the file of a manifest, or of the last step in the folder of a run; None where the
    path is neither: of one process, or a capsule. Raises OSError or step_manifest.Unusable."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, "capsule.json")):
            return None
        if (newest := step_manifest.newest_of(path)) is None:
            # Nobody wrote one where the launcher was killed, or is none of Finitude's.
            made = step_manifest.of_run(path)
            return (os.path.join(path, max(made)), made[max(made)]) if made else None
        path = newest
    elif not step_manifest.NAME.fullmatch(os.path.basename(path)) or not os.path.exists(path):
        return None
    return path, step_manifest.read(path)


def words_for(rest: Sequence[str], path: str, capsule: str) -> list[str]:
    """The words of the command, for the capsule in place of the path."""
    at = max(i for i, word in enumerate(rest) if word == path)
    return [*rest[:at], capsule, *rest[at + 1 :]]


def each_alone(
    path: str,
    found: tuple[str, Mapping[str, Any]],
    rest: Sequence[str],
    play: Callable[[list[str]], tuple[Any, ...]],
    quiet: bool,
    as_json: bool,
) -> int:
    """The exit code: that of the worst rank. play: replay_command of the engine, by words. rest: all words but --json
    and --quiet."""
    if wrong := next((word for word in rest if word.partition("=")[0] in OF_ONE), None):
        sys.stderr.write(
            f"finitude: {wrong} is of one rank: name its capsule, such as {_example(found)}\n"
            "(finitude replay --help shows the options)\n"
        )
        return EXIT_USAGE
    where, document = found
    capsules = step_manifest.capsules(where, document)
    worst, said = 0, []
    for one in document["ranks"]:
        rank = one["rank"]
        if rank not in capsules:
            why = one["why"] or "its folder is not there"
            said.append({"rank": rank, "outcome": None, "text": f"no capsule: {why}\n", "notes": []})
        else:
            code, out, err, _ = play(words_for(rest, path, capsules[rank]))
            worst = max(worst, code)
            outcome = OUTCOMES[code] if code < len(OUTCOMES) else "cannot be replayed"
            said.append({"rank": rank, "outcome": outcome, "text": out, "notes": err.splitlines()})
        if not as_json:
            _print(said[-1], quiet, worst >= len(OUTCOMES))
        if worst == EXIT_USAGE:
            return worst
    if not capsules:
        sys.stderr.write(f"finitude: {where} names no capsule that is there\n")
        return EXIT_INPUT
    if as_json:
        show(where, said, worst, quiet, as_json)
    sys.stdout.flush()
    return worst


def show(where: str, said: Sequence[Mapping[str, Any]], worst: int, quiet: bool, as_json: bool) -> None:
    """Prints what the ranks of a manifest came to. said: for each rank `rank`, `outcome`, `text` and `notes`.
    worst: the exit code."""
    if as_json and worst < len(OUTCOMES):
        sys.stdout.write(
            json.dumps({"schema": 1, "manifest": where, "outcome": OUTCOMES[worst], "ranks": said}, indent=1) + "\n"
        )
    else:
        for one in said:
            _print(one, quiet or as_json, worst >= len(OUTCOMES))
    sys.stdout.flush()


def _print(said, quiet, failed):
    prefix = f"rank {said['rank']}: "
    if not quiet:
        sys.stdout.writelines(prefix + printable(line) + "\n" for line in said["text"].splitlines())
        sys.stdout.flush()
    if not quiet or failed:
        sys.stderr.writelines(f"finitude: {prefix}{line}\n" for line in said["notes"])


def printable(text: str) -> str:
    """A line of a file from elsewhere, for a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)


def _example(found):
    where, document = found
    place = next((one["capsule"] for one in document["ranks"] if one["capsule"]), "rank-0/step-000000")
    return os.path.join(os.path.dirname(where), place)
