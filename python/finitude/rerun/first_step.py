"""The first step of an optimizer where the program cannot be started again: in code that calls `finitude.watch`, in a
cell of a notebook, in a process that a program made. No earlier step has recorded how its window began, so it cannot be
run again in place either. It is traced and taped while it happens, which costs once what the second run of a step
costs."""

from __future__ import annotations

import torch

from .. import _native
from ..program import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Config
    from ..capsules.capsule import Capsules
    from .restart import Restart

MOST = 16  # of a program that makes an optimizer for every step


class FirstStep:
    def __init__(self, config: Config, capsules: Capsules, restart: Restart, explains: bool):
        """explains: this process explains a step of another one."""
        self._config, self._capsules, self._restart, self._explains = config, capsules, restart, explains
        self._made = 0

    def made(self) -> None:
        """An optimizer was made: the next step may be its first."""
        self._made += 1
        if self._made <= MOST:
            self.begin()

    def may_come(self, by_hand: bool = False) -> None:
        """A watch begins, or a cell of a notebook does: where there is an optimizer already its next step may be one
        that nothing leads back to. by_hand: a model is about to be trained, perhaps without one; its first step ends
        with the first call of the engine."""
        if by_hand or _native.counters()["optimizers"] or _native.instances((torch.optim.Optimizer,)):
            self.begin()

    def begin(self) -> None:
        """From here until the next step is over, unless something else explains it. A trace that becomes long on the
        way shows nothing: it may be that of an evaluation."""
        config = self._config
        if (
            config.level == "gate"
            and not config.tape_every
            and not config.verify
            and not self._explains
            and not self._restart.is_possible()
            and not ranks.several()
            and _native.trace_first_step()
        ):
            self._capsules.begin(is_first=True)
