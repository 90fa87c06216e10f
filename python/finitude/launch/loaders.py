"""Which loaders of a program give the batches that a capsule holds."""

from __future__ import annotations

from ..capsules import placing
from ..capsules.placing import Misfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..capsules.placing import Held


class Loaders:
    """Which iterators of the program replace which loader of the capsule, and how far each is."""

    def __init__(self, held: Held):
        self.held = held
        self.batches = {}
        for batch in held.start["batches"]:
            self.batches.setdefault(batch["loader"], []).append(batch)
        self.known, self.why = [], ""  # [sampler of the loader, number of the loader, iterator, batches given]

    def give(self, iterator: Any, template: Any) -> tuple[Any, str] | None:
        """(the batch of the capsule in its place, its generators), or None where this is no loader of the step."""
        sampler = getattr(iterator, "_index_sampler", iterator)  # one and the same in each epoch
        entry = next((e for e in self.known if e[0] is sampler), None)
        if entry is None:
            taken = [e[1] for e in self.known]
            for loader in sorted(self.batches, key=lambda n: n in taken):
                try:
                    placing.fill(self.held, self.batches[loader][0]["batch"], template)
                except Misfit as e:
                    self.why = self.why or str(e)
                    continue
                entry = [sampler, loader, iterator, 0]
                self.known.append(entry)
                break
            else:
                return None
        if entry[2] is not iterator:
            entry[2:] = [iterator, 0]
        own = self.batches[entry[1]]
        recorded = own[entry[3] % len(own)]
        entry[3] += 1
        # A loader that is asked ahead gives a batch before the step is at it.
        drawn = own[max(0, entry[3] - 1 - recorded.get("ahead", 0)) % len(own)]["generators"]
        try:
            return placing.fill(self.held, recorded["batch"], template), drawn
        except Misfit as e:
            self.why = str(e)
            return None
