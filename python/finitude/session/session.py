"""One watched run. The engine calls it on each rare event (native_callbacks.py); from there a bad step goes as follows.

1. A part says what the event means, and makes an alarm where it means one: `windows` of an open window, `weights` of
   what a step wrote, `scaler_skips`, `dropping` and `drops` of what the script skips, `hand` where there is no
   optimizer. docs/contract.md, "When a step is an alarm".
2. `decision.act` has the alarm explained: it tries the ways to run the step again, in the order of rerun/ladder.py. A
   way that returns from the vetoed call comes back to `windows.judge` when the step has run again.
3. `decision.conclude` asks the policy (src/decide/policy.h) for the action, reports the alarm and carries the action
   out: the verdict goes back to the engine, or NonFiniteError is raised.

Where a part fails, `fallback` does what the policy says with what is known by then. assembly.py makes the parts."""

from __future__ import annotations

from .. import _native
from ..alarms import initial_state
from ..effects import notebook_cells
from ..program import optimizer_members, ranks, sinks as sinks_of, step_wrapper
from ..report import growth, kept_step
from . import agreement
from .assembly import Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import AnyTarget, Config, Optimizer, Tensor, Verdict


class Session(Parts):
    def __init__(
        self,
        config: Config,
        script: str = "",
        command: Sequence[str] = (),
        target: AnyTarget | None = None,
        start: Any = None,
        is_member: bool = False,
    ):
        super().__init__(config, script, command, target, start, is_member)
        self.on_window = self.windows.judge
        self.on_warning = self.step_warnings.add
        self.on_verified = self.verified.add
        self.on_restored = self.watched_tensors.watch_buffers_of
        self.on_scaler_agreed = self.scaler_skips.agreed
        if target is not None:
            target.attach(self)

    # -- an optimizer comes ---------------------------------------------------------------------

    def on_created(self, optimizer: Optimizer) -> None:
        self._register(optimizer)
        self.first_step.made()
        self.part(self.dumps.created)

    def _register(self, optimizer):
        step_wrapper.register(optimizer)
        self.deferred.register(optimizer)
        self.tape_level.begin()
        self.part(self.chosen_step.arm)
        self.part(self.rank_checks.write_facts)
        from . import install

        if self.part(ranks.several) and self.part(self.agreement.wants, optimizer):
            install.replace_gate_hook(agreement.before_step, agreement.scaler_step)
        install.watch_imported()
        self.watched_tensors.watch_buffers_of(optimizer)
        ordinal = _native.window(optimizer)["ordinal"]
        if self.makers.note(ordinal) and self.target is not None:
            self.target.was_made(ordinal)

    def first_seen(self, optimizer: Optimizer) -> Verdict:
        """Its first step comes."""
        self.store.open_files()
        _native.writes_seen()  # the program has an optimizer: no manual update is waited for
        if not _native.is_registered(optimizer):
            self._register(optimizer)
        self.started_with[id(optimizer)] = optimizer_members.magnitudes(optimizer)
        sinks_of.note_unused(optimizer)
        _native.note_modules(optimizer, optimizer_members.roots(optimizer))
        bad = initial_state.bad(optimizer, self.allowed.tensors)
        self.streams.look(optimizer)
        self._register(optimizer)  # again: groups may have been added since it was made
        self.part(self.store.name, optimizer)
        self.on_kept(optimizer)
        self.part(self.never_written.note_start, optimizer)
        self.part(self.rank_checks.compare_facts)
        if self.target is not None:
            return self.target.begins(optimizer, bad)
        if not bad:
            self.part(growth.advise_extremes, self.report, optimizer, self.started_with[id(optimizer)])
            return None
        alarm = self.initial_state.alarm(optimizer, *bad)
        _native.consume_losses(optimizer)
        return self.initial_state.decided(optimizer, self.decision.act(optimizer, alarm, [bad], where="start"))

    on_kept = staticmethod(kept_step.name)

    def on_stream_met(self, _: Any) -> None:
        """A name of the user's frames holds a generator that it did not before."""
        self.streams.look()

    # -- backward -------------------------------------------------------------------------------

    def on_backward(self, roots: Sequence[Tensor]) -> None:
        if not self.dropping.backward_begins():
            self.holds.backward_begins(roots, self.known)

    def on_bad_backward(self, optimizer: Optimizer) -> None:
        """It has left gradients that are not finite, and the one before did not."""
        self.drops.begins(optimizer)

    def on_left_bad(self, optimizer: Optimizer) -> None:
        """The same in a second run of a step that the script drops."""
        self.dropping.backward_ended(optimizer)

    def on_backward_raised(self, error: BaseException) -> None:
        self.drops.raised(error)

    def on_hand_begin(self, roots: Sequence[Any], inputs: Sequence[Any] | None, to_leaves: bool) -> Any:
        """An engine call of a program that has no optimizer."""
        return self.hand.begin(roots, inputs or (), to_leaves)

    def on_hand_end(self, result: tuple[Any, ...] | None) -> tuple[Tensor | None, ...] | None:
        return self.hand.end(result)

    # -- a step ---------------------------------------------------------------------------------

    def on_written(self, optimizer: Optimizer) -> Verdict:
        """The step just taken wrote something bad. May raise NonFiniteError."""
        return self.weights.just_written(optimizer)

    def on_late(self, optimizer: Optimizer | None, late: dict[str, Any]) -> Verdict:
        """The verdict on an earlier step, for which the host did not wait. May raise NonFiniteError."""
        return self.deferred.verdict_of(optimizer, late)

    def on_closure(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`step` is given a closure."""
        return self.closures.wrap(optimizer, args, kwargs)

    def on_searched(self, search: Any) -> None:
        """A step that searched along a line is over. May raise NonFiniteError."""
        self.closures.judge(search)

    def on_scaler_step(self, optimizer: Optimizer, scaler: Any, skipped: bool) -> bool | None:
        """GradScaler.step with a bad unscaled loss, or which skipped its step. May raise NonFiniteError."""
        return self.scaler_skips.on_step(optimizer, scaler, skipped)

    def on_scaler_skip(self, optimizer: Optimizer) -> None:
        self.scaler_skips.skipped_once(optimizer)

    def on_dropped(self, optimizer: Optimizer) -> bool | None:
        """The script has dropped as many bad steps in a row as --max-skips. May raise NonFiniteError."""
        return self.drops.grown(optimizer)

    def on_asked_row(self, count: int, is_looked_at: bool = False) -> bool | None:
        """The same of gradients that it asked for. May raise NonFiniteError."""
        return self.drops.asked(count, is_looked_at)

    def on_unit_raised(self, error: BaseException) -> None:
        """A unit of work gives up."""
        self.call_again.raised(error)

    def on_armed(self, optimizer: Optimizer | None) -> None:
        """The step begins that a second process explains, or that is kept as a capsule."""
        (self.target or self.chosen_step).on_armed(optimizer)

    leave_out = staticmethod(step_wrapper.leave_out)

    # -- what the program and its host ask for --------------------------------------------------

    def attach_notebook(self) -> None:
        """In a notebook, reports are shown below the running cell, and each cell is a program of its own."""
        if notebook_cells.shell() is None:
            return
        self.console.show_with(notebook_cells.show)

        def new_cell(*_):
            self.second_runs.begin()
            self.first_step.may_come()

        self.ending.call_before(notebook_cells.before_each(new_cell))
