"""What --dump names and no step, rank or module of this run is: refused at the start where it is known there, else said
when the run ends."""

from __future__ import annotations

import torch

from ..base import dump_plan
from ..base.config import UsageError
from ..base.say import say
from ..program import optimizer_members, ranks
from ..report import merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..base.dump_plan import Plan
    from ..base.types import Config
    from ..report.document import Report

MOST_NAMES = 8  # of what is there, where a filter fits nothing
# Parts of a name that a wrapper made later will add.
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def refuse(config: Config, model: object) -> None:
    """Raises UsageError where a rank or a module that is named cannot be there. model: of the program, or None."""
    if not config.dump and not config.dump_control and not config.golden:
        return
    plan = dump_plan.parse(config.dump, config.dump_steps, config.dump_only)
    size = ranks.known_size()
    if size is not None and (missing := plan.missing_ranks(size)):
        raise UsageError(missing)
    if not plan.modules() or not isinstance(model, torch.nn.Module):
        return
    # A loss is a module too, and the program may have several models.
    every = optimizer_members.instances(torch.nn.Module)
    known = [{"module": f"{type(m).__name__}.{name}".rstrip(".")} for m in every for name in _names_in(m)]
    for value in plan.modules():
        plain = value
        for word in WRAPPERS:
            plain = plain.replace(word, "")
        if not any(dump_plan.fits("module", (value, plain), one) for one in known):
            names = [name for name in _names_in(model) if name]
            raise UsageError(f"--dump-only module={value} fits no module; there are: {_listed(names)}")


def _names_in(module):
    try:
        return [name for name, _ in module.named_modules()]
    except Exception:  # of a module that is not set up yet, or has a method of its own by that name
        return []


def _listed(names):
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


class Shortfall:
    """Of the plan of one process, while its steps are dumped."""

    def __init__(self, report: Report, names_steps: bool):
        """names_steps: those that are never reached; --golden says so itself."""
        self._report, self._names_steps = report, names_steps
        self._plan = dump_plan.Plan()
        self._dumped = self._records = 0
        self._unmatched: list[str] = []  # in each dumped step so far
        self._has_looked_at_ranks = False

    def begin(self, plan: Plan, steps: int) -> None:
        """This plan holds from here on. steps: how many have ended."""
        if plan == self._plan:
            return
        self.tell(steps)
        self._plan, self._dumped, self._records, self._unmatched = plan, 0, 0, []

    def look_at_ranks(self) -> None:
        """Once, when the first step has ended: a process group that is used is there by then."""
        if self._has_looked_at_ranks:
            return
        self._has_looked_at_ranks = True
        rank, size = ranks.world()
        if self._plan.kind and (missing := self._plan.missing_ranks(size)):
            self._report.add_not_watched(missing)
            if rank == 0:
                say(f"finitude: {missing}\n")

    def dumped(self, step: int, seen: Sequence[Mapping[str, Any]], records: int) -> None:
        """seen: what there was in that step. records: how many were written. With the first step of a plan it is said
        what is there."""
        unmatched = self._plan.unmatched(seen)
        self._unmatched = [u for u in unmatched if not self._dumped or u in self._unmatched]
        self._dumped += 1
        self._records += records
        for one in unmatched if self._dumped == 1 else ():
            key = one.partition("=")[0].replace("-", "_")
            names = dict.fromkeys(str(record.get(key, "")) for record in seen if record.get(key) not in ("", None))
            say(f"finitude: --dump-only {one} fits nothing in step {step}; there are: {_listed(list(names))}\n")

    def tell(self, steps: int) -> None:
        """No more steps are dumped by this plan; what of it came to nothing is in the report and the closing line."""
        plan, self._plan = self._plan, dump_plan.Plan()
        if not plan.kind or not plan.takes_rank(ranks.world()[0]):
            return
        # A process without steps may have started those that train: they say what they lack.
        is_parent = steps == 0 and merge.members(self._report.planned_directory())
        if self._names_steps and not is_parent and (late := plan.steps.after(steps - 1)):
            made = f"the training made {steps} step{'s' * (steps != 1)}"
            self._report.add_not_watched(f"--dump-steps {late}: {made}")
        of = f"{self._dumped} dumped step{'s' * (self._dumped != 1)}"
        for one in self._unmatched:
            self._report.add_not_watched(f"--dump-only {one}: it fits nothing in {of}")
        if self._dumped and not self._records and not self._unmatched and plan.only:
            self._report.add_not_watched(f"--dump-only {plan.only_text()}: no record fits all of it in {of}")
