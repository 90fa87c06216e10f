"""`finitude rows [RUN]`."""

from __future__ import annotations

import json
import os
import sys
import textwrap

from ..base import option_words, screen, skip_list
from ..base.say import printable
from ..store import reader, runs
from . import found as rows
from .options import FLAGS, HELP, OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..store.reader import Batch
    from .found import BadStep, Dataset, Process, Shared

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
FEW = 12  # rows of a step where many steps are listed
_ACTIONS = {True: "applied", False: "not applied"}
_WITH_VALUE = {name: name for name in OPTIONS if name not in FLAGS}
_FLAGS = {**option_words.QUIET, **{name: name for name in FLAGS}}


class _Asked:
    """Raises option_words.Wrong."""

    def __init__(self, rest: Sequence[str]):
        words = option_words.Words(rest, _WITH_VALUE, _FLAGS)
        if len(words.paths) > 1:
            raise option_words.Wrong("one run at a time")
        step = words.values.get("--step")
        if step is not None and not (step.isascii() and step.isdecimal() and len(step) < 16):
            raise option_words.Wrong(f"--step takes the number of a step, not {step!r}")
        self.path, self.skip_list = "".join(words.paths), words.values.get("--skip-list", "")
        self.step = None if step is None else int(step)
        self.is_json, self.is_quiet = words.has("--json"), words.has("--quiet")


def main(words: Sequence[str], newest: Callable[[bool], tuple[list[str], int]]) -> int:
    """newest(is quiet): the path of the newest run, or none and the exit code."""
    if any(word in ("-h", "--help") for word in words):
        sys.stdout.write(HELP)
        return 0
    try:
        asked = _Asked(words)
    except option_words.Wrong as e:
        sys.stderr.write(option_words.usage("rows", str(e), HELP))
        return EXIT_USAGE
    if not asked.path:
        paths, code = newest(asked.is_quiet)
        if not paths:
            return code
        asked.path = paths[0]
    try:
        return _answer(asked)
    except (reader.Unreadable, rows.NoRows, skip_list.Unreadable) as e:
        sys.stderr.write(f"finitude: {printable(asked.path)}: {e}\n")
    except OSError as e:
        sys.stderr.write(f"finitude: {printable(asked.path)}: {e.strerror or e}\n")
    return EXIT_INPUT


def _answer(asked):
    run = next(iter(runs.found(asked.path)), "")
    if not run:
        raise reader.Unreadable("it is no run and holds none")
    processes = rows.processes(run)
    if asked.step is None:
        steps = rows.bad_steps(processes)
        shared = rows.Shared(processes, steps)
        lists = rows.to_skip(steps) if asked.skip_list else []
        document, text = _overview(run, steps, shared, len(processes) > 1)
    else:
        batches = [(one, batch) for one in processes for batch in one.batches("step = ?", (asked.step,))]
        if not batches:
            raise rows.NoRows(f"it has no rows of step {asked.step}{_kept(processes)}")
        lists = rows.listed((one.dataset_of(batch), row) for one, batch in batches for row in batch.ids)
        document, text = _one_step(run, asked.step, batches, len(processes) > 1)
    if asked.skip_list and (code := _write(asked, lists)):
        return code
    sys.stdout.write(json.dumps(document, indent=1) + "\n" if asked.is_json else text)
    return 0


def _kept(processes):
    """Which steps have rows."""
    ends = []
    for process in processes:
        with reader.Store(process.path) as store:
            ends += [end for end in store.first_and_last_batch() if end is not None]
    return f"; those of steps {min(ends)} to {max(ends)} are kept" if ends else ""


def _write(asked, lists):
    if not lists:
        sys.stderr.write("finitude: there is no row to skip: no bad step has rows; nothing is written\n")
        return 0
    try:
        skip_list.write(asked.skip_list, lists)
    except OSError as e:
        sys.stderr.write(f"finitude: cannot write {printable(asked.skip_list)}: {e.strerror or e}\n")
        return EXIT_CANNOT
    if not asked.is_quiet:
        named = ", ".join(f"{len(one.ids)} rows of {one.dataset}" for one in lists)
        sys.stderr.write(f"finitude: written to {printable(asked.skip_list)}: {named}\n")
    return 0


def _dataset_words(dataset: Dataset) -> str:
    name, length = dataset
    return name if length is None else f"{name} ({length} rows)"


def _object(dataset: Dataset) -> dict[str, Any]:
    return {"dataset": dataset[0], "length": dataset[1]}


def ranges(ids: Iterable[int]) -> list[str]:
    """In the order given; neighbours that follow each other as one: 3, 7-9."""
    words: list[list[int]] = []
    for one in ids:
        if words and one == words[-1][1] + 1:
            words[-1][1] = one
        else:
            words.append([one, one])
    return [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in words]


def _wrapped(text, indent):
    width = max(40, screen.columns(otherwise=100))
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False) + "\n"


def _batch_words(process: Process, batch: Batch) -> str:
    worker = "" if batch.worker is None else f", worker {batch.worker}"
    return f"{batch.count} rows of {_dataset_words(process.dataset_of(batch))}, epoch {batch.epoch}{worker}"


def _batch_object(process: Process, batch: Batch) -> dict[str, Any]:
    return {
        "micro_batch": batch.micro_batch,
        **_object(process.dataset_of(batch)),
        "epoch": batch.epoch,
        "worker": batch.worker,
        "count": batch.count,
        "ids": batch.ids,
    }


def _head(step: int, optimizer: str, rank: int, has_ranks: bool, event: str | None, applied: bool) -> str:
    of_rank = f"rank {rank}, " if has_ranks else ""
    what = f"{event}, " if event else ""
    return f"{of_rank}step {step}, {optimizer}: {what}{_ACTIONS[applied]}\n"


def _one_step(run: str, step: int, batches: list[tuple[Process, Batch]], has_ranks: bool) -> tuple[dict[str, Any], str]:
    text, last = "", None
    listed: list[dict[str, Any]] = []
    for process, batch in batches:
        if last != (process.rank, batch.optimizer):
            last = process.rank, batch.optimizer
            text += _head(step, batch.optimizer, process.rank, has_ranks, batch.event, batch.applied)
            listed.append(_step_object(process, batch))
        listed[-1]["batches"].append(_batch_object(process, batch))
        text += f"  micro-batch {batch.micro_batch}: {_batch_words(process, batch)}\n"
        more = f", and {batch.count - len(batch.ids)} more" if batch.count > len(batch.ids) else ""
        text += _wrapped(", ".join(ranges(batch.ids)) + more, "    ")
    return {"schema": 1, "run": run, "step": step, "steps": listed}, text


def _step_object(process: Process, batch: Batch) -> dict[str, Any]:
    return {
        "step": batch.step,
        "optimizer": batch.optimizer,
        "rank": process.rank,
        "event": batch.event,
        "applied": batch.applied,
        "batches": [],
    }


def _bad_text(one: BadStep, has_ranks: bool) -> str:
    first = one.batches[0]
    text = _head(one.step, one.optimizer, one.process.rank, has_ranks, one.event, first.applied)
    for batch in one.batches:
        more = f" and {batch.count - FEW} more" if batch.count > FEW else ""
        shown = ", ".join(map(str, batch.ids[:FEW]))
        text += _wrapped(f"{_batch_words(one.process, batch)}: {shown}{more}", "    ")
    if one.named:
        text += _wrapped("the alarm names " + ", ".join(str(row) for _, row in sorted(one.named)[:FEW]), "    ")
    return text


def _common_words(common: rows.Common, shared: Shared) -> str:
    dataset, row = common.row
    where = f"row {row} of {_dataset_words(dataset)}: in {common.bad} of {shared.steps} bad steps"
    if not shared.others:
        return where
    lift = "" if common.lift is None else f", {common.lift:.3g} times as often"
    return f"{where}, in {common.other} of {shared.others} others{lift}"


def _overview(run: str, steps: list[BadStep], shared: Shared, has_ranks: bool) -> tuple[dict[str, Any], str]:
    listed = [
        {
            **_step_object(one.process, one.batches[0]),
            "batches": [_batch_object(one.process, batch) for batch in one.batches],
            "named": sorted(row for _, row in one.named),
        }
        for one in steps
    ]
    common = [
        {**_object(one.row[0]), "row": one.row[1], "bad_steps": one.bad, "other_steps": one.other, "lift": one.lift}
        for one in shared.rows[: rows.MOST_COMMON]
    ]
    document = {
        "schema": 1,
        "run": run,
        "steps": listed,
        "bad_steps": shared.steps,
        "other_steps": shared.others,
        "in_each": [{**_object(dataset), "row": row} for dataset, row in shared.in_each()] if len(steps) > 1 else [],
        "common": common,
    }
    name = os.path.basename(os.path.abspath(run))
    if not steps:
        return document, f"{name}: no step with an alarm or a spike has rows\n"
    text = "".join(_bad_text(one, has_ranks) for one in steps)
    if len(steps) == 1:
        return document, text
    text += f"rows that several of these {len(steps)} steps share: {len(shared.rows) or 'none'}\n"
    for one in shared.rows[:FEW]:
        text += _wrapped(_common_words(one, shared), "    ")
    if len(shared.rows) > FEW:
        text += f"    and {len(shared.rows) - FEW} more (--json)\n"
    return document, text
