"""The parts of a watched run, made in the order in which they need each other.

A part is given what it uses. Those that explain and decide need most of the others, and of these some that are made
later: they are given the session itself."""

from __future__ import annotations

import os

from .. import _native
from ..alarms import (
    deferred_verdict,
    dropped_rows,
    functional,
    initial_state,
    manual_updates,
    never_written,
    nonfinite_weights,
    refused,
    scaler_skips,
    script_handled,
    unwritten_memory,
)
from ..capsules import capsule
from ..program import (
    grad_scaler,
    optimizer_threads,
    rng_generators,
    saved_tensors,
    sinks as sinks_of,
    step_start_state,
)
from ..report import console, incident, kept_step, new_alarms, patch
from ..report.document import Report
from ..rerun import budgets, call_again, deferred_restart, first_step, rank_vote, rewind_manual, tape, traced, under_way
from ..rerun.alarm_correlation import RecentAlarms
from ..rerun.restart import Restart
from ..rerun.rewound import Rewound
from . import (
    agreement,
    allowed,
    checkpoint_guard,
    chosen_action,
    chosen_step,
    closures,
    context,
    control,
    decision,
    failures,
    lowered_rate,
    minimal,
    policy_state,
    program_exit,
    rank_checks,
    rollback,
    run_store,
    shared_signals,
    skipped_steps,
    step_calls,
    step_dumps,
    step_warnings,
    verified,
    watched_tensors,
    windows,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..base.types import AnyTarget, Config, StartMagnitudes


class Parts:
    """All of them; Session (session.py) is what uses them."""

    def __init__(
        self,
        config: Config,
        script: str,
        command: Sequence[str],
        target: AnyTarget | None,
        start: Any,
        is_member: bool,
    ):
        """target: in a second process, the step it is to explain. start: how the program was started
        (launch_command.Start), for starting it again. is_member: one of several processes of a run, and whoever merges
        them has the last word."""
        explains = target is not None
        self.config, self.target, self.start, self.member = config, target, start, is_member
        self.pid = os.getpid()
        self.debug = bool(os.environ.get("FINITUDE_DEBUG"))

        # The report, and what keeps an internal failure from the program.
        self.report = Report(config, script, command, is_kept=not explains)
        self.report.by_watch = start is None and not is_member
        self.console = console.Console(self.report)
        self.failures = failures.Failures(self.report, self.debug)
        self.part = self.failures.part
        self.control = control.Control(config, self.report)
        self.store = run_store.RunStore(self.report, target, self.part)
        self.acting = failures.ActedOn()
        self.fallback = minimal.Fallback(self)
        self.ending = program_exit.Ending(self)

        # What is known of the program.
        patch.note_folder()
        self.scaling = grad_scaler.Scaling()
        self.allowed = allowed.Allowed()
        self.known = _native.Known()
        self.streams = rng_generators.Streams()
        self.makers = optimizer_threads.Makers()
        self.started_with: StartMagnitudes = {}
        self.saved = saved_tensors.SavedTensors(self.part, not config.redact)
        self.draws = skipped_steps.Draws()
        self.damage = new_alarms.Damage()
        self.alarms = new_alarms.NewAlarms(config, self.scaling, self.allowed.tensors, self.damage)
        self.context = context.Context(config, self.report, self.console, self.part, target, self.alarms, self.damage)

        # What a policy needs.
        self.chosen_action: chosen_action.ChosenAction | None = None  # of the program: watch(on_alarm=function)
        self.policy = control.machine(config)
        self.policy_state = (
            policy_state.PolicyState(self.report) if policy_state.counts_anything(config) and not explains else None
        )
        self.lowered_rate = lowered_rate.LoweredRate(config, self.report)
        self.holds = skipped_steps.Holds()
        self.skipped = skipped_steps.SkippedSteps(self.part, self.draws, self.holds, self.scaling)

        # What is recorded of a step, and what that shows.
        self.units = step_calls.Units(self.streams, explains)
        self.step_start = step_start_state.Remembering(
            self.scaling, self.units.of_step, self.report.add_not_watched, self.debug
        )
        self.capsules = capsule.Capsules(config, self.report, self.step_start, self.console.print_alarm)
        self.second_run = under_way.SecondRun()
        self.second_runs = under_way.SecondRuns(config.on_alarm)
        self.analysis = incident.Analysis(
            config,
            self.scaling,
            self.started_with,
            self.allowed.tensors,
            self.known,
            lambda: self.second_run.is_without_tensor,
        )

        # The ways to run a step again.
        self.restart = Restart(self)
        self.rest = deferred_restart.Rest(
            config, self.report, self.restart, self.skipped.decided, self.console.print_alarm, explains
        )
        self.recent = RecentAlarms(config, self.allowed, self.second_runs, self.damage, self.known, self.rest)
        self.ballot = rank_vote.Ballot(self.context, self.second_run, is_member, self.ending.end)
        self.traced = traced.Traced(self.report.add_not_watched)
        self.chosen_step = chosen_step.ChosenStep(config, self.report, self.capsules, explains, self.part)
        self.tape_level = tape.TapeLevel(config, explains, self.report.add_not_watched)
        self.rewound = Rewound(self)
        self.first_step = first_step.FirstStep(config, self.capsules, self.restart, explains)
        self.in_place = rewind_manual.InPlace(config, self.capsules, self.restart, self.analysis, explains)

        # A program without an optimizer.
        self.unvetoed = functional.Unvetoed(self.context, self.policy, self.second_runs, self.restart, self.in_place)
        self.hand = manual_updates.ByHand(self)
        self.bad_windows = sinks_of.BadWindows(
            self.known, self.alarms.of, self.alarms.of_class, lambda: self.hand.is_damaged
        )
        self.call_again = call_again.CallAgain(
            call_again.Needs(
                config,
                self.units,
                self.bad_windows,
                self.second_run,
                self.recent,
                self.holds,
                self.scaling,
                self.streams,
                self.capsules,
                self.analysis,
            )
        )

        # The engine is set as the options say.
        self.drops = dropped_rows.Drops(self)
        budgets.set_budgets(config, explains)
        incident.load_rules(config)
        _native.set_device_policy(config.on_alarm)
        kept_step.begin(config.level, is_second_process=explains)

        self.step_warnings = step_warnings.StepWarnings(config, self.report, self.control, self.part, explains)
        self.rank_checks = rank_checks.RankChecks(config, self.report, explains)
        self.shared_signals = shared_signals.SharedSignals(config, self.report, self.ending, explains)
        self.verified = verified.VerifiedSteps(config, self.report, self.part)

        self.checkpoint_guard = checkpoint_guard.CheckpointGuard(config, self.report, self.part)

        # What is decided of a bad step, and the kinds of alarms.
        self.settled = decision.Settled(config, self.scaling, self.damage, self.known)
        self.rollback = rollback.Rollback(
            config, self.report, self.holds, self.scaling, self.damage, self.lowered_rate, self.ballot, explains
        )
        self.dumps = step_dumps.StepDumps(config, self.report, self.control, self.part, explains)
        self.watched_tensors = watched_tensors.WatchedTensors(self.report, self.units)
        self.decision = decision.Decision(self)
        self.agreement = agreement.Agreement(self.context, self.ballot, self.allowed, self.scaling, self.decision.act)
        self.windows = windows.Windows(self)
        self.dropping = script_handled.Dropping(self)
        self.deferred = deferred_verdict.Deferred(self)
        self.initial_state = initial_state.InitialState(self.context)
        self.never_written = never_written.NeverWritten(self.report, self.part)
        self.unwritten = unwritten_memory.Unwritten(config, self.restart, self.started_with)
        self.weights = nonfinite_weights.NonfiniteWeights(
            self.context, self.allowed.tensors, self.analysis, self.restart, self.decision.act
        )
        self.scaler_skips = scaler_skips.ScalerSkips(
            self.context, self.scaling, self.units.leave_at, self.windows.judge, self.decision.act, self.agreement
        )
        self.closures = closures.Closures(self.context, self.units, self.decision.act)
        self.refused = refused.RefusedValues(self.context, self.known, self.debug)
