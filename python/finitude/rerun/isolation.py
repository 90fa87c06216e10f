"""What a second run in place must not leave behind, set aside and put back in one place and in one order. What is added
here is isolated in each way that runs the program again."""

from __future__ import annotations

from .. import _native
from ..base import compat
from ..base.robust import in_any_case
from ..capsules import capsule
from ..effects import output_suppression
from ..effects.files import HeldFiles
from ..effects.output_suppression import Quiet
from ..report import value_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import Generators, Ledger, Tensor


class IsolatedRun:
    """Calls come in this order: `begin`, `record`, then the program runs again, `end` and `put_objects_back`. After a
    failure of our code `let_go` takes the place of `end`.

    ledger: the program's objects as they are now. Whoever makes it looks first whether it allows a second run.
    held: tensors that operators read as they are now, whatever the second run writes into them before."""

    def __init__(self, ledger: Ledger, held: Sequence[Tensor] = ()):
        self.ledger = ledger
        self._held = held
        self.is_eager = False  # compiled code runs operation by operation meanwhile
        self._files: HeldFiles | None = None
        self._output: Quiet | None = None
        self._stance: Any = None

    def begin(self, eagerly: bool = True) -> None:
        """Files and output of the program are held from here on. eagerly: nor does compiled code run, into which the
        tracer does not see."""
        if self._held:
            _native.hold_values(self._held, [])  # before the tracer, which is to see what is put back
        self._files, self._output = HeldFiles(), Quiet()
        if eagerly:
            self._stance = compat.run_eagerly()
            self.is_eager = self._stance is not None

    def record(self, capsules: capsule.Capsules, generators: Generators | None = None, dropped: bool = False) -> None:
        """Operations are traced, and taped for a capsule. generators: as they were when the window began, where that is
        not now. dropped: the script is going to drop the gradients that backward leaves: they are sinks then."""
        _native.trace_clear()
        _native.trace_start(again=True)
        _native.gradients_are_sinks(dropped)
        capsules.begin(generators)
        value_lines.begin()

    @staticmethod
    def drop_recording() -> None:
        """Nobody is going to ask what was recorded."""
        in_any_case(
            value_lines.end,
            _native.trace_stop,
            lambda: _native.gradients_are_sinks(False),
            capsule.drop,
            _native.trace_clear,
        )

    def end(self) -> list[str]:
        """Files, output and compiled code are the program's again. Names of what was written or done twice."""
        value_lines.stop()
        twice, *_ = in_any_case(
            lambda: self._files.end() if self._files is not None else [],
            self._output.end if self._output is not None else lambda: None,
            self._end_eager,
            self._release,
        )
        self._files = self._output = None
        return twice

    def put_objects_back(self) -> list[str]:
        """Names of what could not be put back."""
        return self.ledger.put_back()

    def let_go(self) -> None:
        """After a failure of our code: what is held, by whomever, is let go of. May be called after `end`, too."""
        in_any_case(value_lines.end, output_suppression.let_go, self._end_eager, self._release)

    def _release(self):
        held, self._held = self._held, ()
        if held:
            _native.release_values()

    def _end_eager(self):
        stance, self._stance = self._stance, None
        compat.end_eager(stance)
