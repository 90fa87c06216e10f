"""Names of types, for annotations alone: nothing here is there while a program runs.

A module takes them under `if TYPE_CHECKING:`, which type checkers read and Python does not (the module sets it to False
itself, as importing `typing` takes time). So this file, and no other, may name classes of folders to its right."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal, NoReturn, ParamSpec, Protocol, TypedDict, TypeVar

    from torch import Generator as Generator, Tensor as Tensor
    from torch.autograd.graph import Node as Node
    from torch.nn import Module as Module
    from torch.optim import Optimizer as Optimizer
    from typing_extensions import NotRequired, Unpack as Unpack  # part of `typing` from Python 3.11 on

    from .._native import Generators as Generators, OwnProbe as OwnProbe, PolicyMachine as PolicyMachine
    from ..api import Watch as Watch
    from ..doctor.look import Look as DoctorLook  # noqa: F401
    from ..effects.object_snapshot import Ledger as Ledger
    from ..effects.rebound_attributes import Left as Left
    from ..rerun.alarm_correlation import Gradients
    from ..rerun.isolation import IsolatedRun
    from ..rerun.rank_vote import Vote as Vote
    from ..rerun.weights import Weights as WeightsHeld
    from ..session.allowed import Allowance as Allowance, Allowed as Allowed
    from ..session.assembly import Parts as Parts
    from ..session.context import Context as Context
    from ..session.session import Session as Session
    from ..session.skipped_steps import Holds as Holds
    from ..session.step_calls import Units as Units
    from .config import Config as Config
    from .family import Family as Family
    from .patches import Patches as Patches
    from .records import (
        Advisory as Advisory,
        Alarm as Alarm,
        Around as Around,
        BadBuffer as BadBuffer,
        BadGradients as BadGradients,
        BadTensor as BadTensor,
        BadWindow as BadWindow,
        Birth as Birth,
        Cause as Cause,
        Confidence as Confidence,
        Datum as Datum,
        Document as Document,
        Edit as Edit,
        Experiment as Experiment,
        Failure as Failure,
        Figures as Figures,
        Findings as Findings,
        Fingerprint as Fingerprint,
        Fix as Fix,
        Frame as Frame,
        FromFile as FromFile,
        History as History,
        InPlace as InPlace,
        Late as Late,
        Level as Level,
        LossNote as LossNote,
        OnAlarm as OnAlarm,
        Onset as Onset,
        Operation as Operation,
        Phase as Phase,
        Place as Place,
        Process as Process,
        Real as Real,
        Rerun as Rerun,
        RerunBy as RerunBy,
        Scalar as Scalar,
        Sink as Sink,
        SinkKind as SinkKind,
        SinkName as SinkName,
        Start as Start,
        Statistics as Statistics,
        TapePlayed as TapePlayed,
        Trace as Trace,
        Watched as Watched,
        Weights as Weights,
        Where as Where,
        Window as Window,
        WindowVerdict as WindowVerdict,
    )
    from .warning_records import StepWarning as StepWarning

    P = ParamSpec("P")  # what a function takes
    R = TypeVar("R")  # what it returns
    Function = TypeVar("Function", bound=Callable[..., Any])
    Thing = TypeVar("Thing")
    TextPath = str | os.PathLike[str]
    AnyPath = str | bytes | os.PathLike[Any]

    Streaming = Literal["auto", "on", "off"]

    class WatchOptions(TypedDict, total=False):
        """The keywords of finitude.watch, for functions that pass them on."""

        on_alarm: OnAlarm | Callable[[dict[str, Any]], str | None] | None
        level: Level | None
        tape_every: int | None
        replicas_every: int | None
        signals_together: float | None
        verify: str | None
        guard_memory: bool | None
        report: TextPath | None
        runs: TextPath | None
        max_skips: int | None
        max_bad: int | None
        max_bad_share: str | float | None
        then: str | None
        cool_down: int | None
        undo_mb: int | None
        rollback_every: int | None
        rollback_mb: int | None
        rollback_lr: float | None
        rollback_skip_rows: bool | None
        lower_rate_factor: float | None
        restart_args: str | None
        capsules: int | None
        capsule_max: int | None
        capsule_of_step: int | None
        experiments: int | None
        stream_gradients: Streaming | None
        warnings: str | None
        grad_warn: float | None
        checkpoints: str | None
        on_event: str | Callable[[dict[str, Any]], Any] | None
        dump: str | None
        dump_steps: str | None
        dump_only: str | None
        dump_mb: int | None
        dump_control: TextPath | None
        golden: TextPath | None
        record_env: str | None
        skip_rows: TextPath | None
        seed: int | str | None
        redact: bool | None
        quiet: bool | None
        rules: str | list[str] | None
        tensors: Mapping[str, Tensor | Callable[[], Tensor]] | None

    StartMagnitudes = dict[int, dict[int, float]]  # id(optimizer) -> id(parameter) -> magnitude before the first step
    Source = tuple[Any, Any, Any, Any]  # (iterator of a loader, batch, indices, generators before it)
    AppliedSteps = list[tuple[int, float, float, float]]  # (step, loss, largest gradient, learning rate)
    Verdict = bool | str | None  # True: the step is skipped; None: it is applied; "again": its window runs once more

    class Pending(TypedDict):
        """An alarm whose second run is under way (rewind.begin)."""

        alarm: Alarm
        sinks: Sequence[Sink]
        expected: Fingerprint
        optimizer: Optimizer
        isolation: IsolatedRun
        grads: list[tuple[Tensor, Tensor | None]]  # (parameter, its gradient in the first run)
        weights: WeightsHeld
        left_out: list[Optimizer]  # whose steps the first run skipped
        way: InPlace
        tries: int  # ways that went wrong
        jumped: list[Optimizer]  # whose steps are undone and taken again
        over: str  # their names
        twice: list[str]  # names of what was written twice by second runs before this one
        drawn: Any  # sums of the generators (rng_generators.sums)
        named: list[list[Any]]  # incident.in_names
        vote: Vote | None
        counts_down: bool
        holds: bool  # what the program writes between two steps is read as the first run read it
        losses: list[float] | None  # of the first run
        since: int  # where it begins (_native.rewind_since)
        others: NotRequired[Gradients]  # of parameters that none of these optimizers steps; once the run has begun
        shorter: NotRequired[Findings | None]  # of a second run that began later

    class Order(TypedDict):
        """What a second process is to explain (restart)."""

        start: list[Any] | None  # Fingerprint.start
        ordinal: int  # number of the optimizer; -1: it is not made yet
        step: int
        hand: int | None  # of a program without an optimizer, the engine call
        written: bool
        swallowed: bool
        overflowed: bool
        dropped: bool
        first: int  # step from which on it is looked for
        expected: Fingerprint
        named: list[list[Any]]  # incident.in_names
        seeds: dict[str, Any]  # launch_command.Start.seeds
        threads: int
        compiled: bool
        made: list[Any] | None  # optimizer_threads.Makers.identity
        result: NotRequired[str]  # path of the file that it writes
        alarm: NotRequired[Alarm]
        capsule: NotRequired[str | None]  # path of the folder that it writes; None: none is wanted
        capsule_in_report: NotRequired[str]  # the same as the report names it
        resumed: NotRequired[str]  # the checkpoint that the program continues from; "": it begins at its start
        decided: NotRequired[list[list[Any]]]  # Session.decided
        took: NotRequired[float]  # seconds of the first run up to the step, where it has continued since
        skips: NotRequired[int]  # steps in a row that a GradScaler skipped
        damaged: NotRequired[bool]
        memory: NotRequired[AskedMemory]
        ranks: NotRequired[int]  # world size, where all of them run again
        listed: NotRequired[int]  # alarms that the rank had reported before this one
        witness: NotRequired[bool]  # this rank's values were finite: what it gave other ranks is looked at

    class AskedMemory(TypedDict):
        step: int  # of the alarm
        suspects: list[str]

    class Injected(TypedDict):
        """What a process that runs a step of a capsule in the program is to do (cli/trial.py)."""

        capsule: str  # paths
        result: str
        way: str
        written: bool
        threads: int | None
        # With --against, see launch/compared.py.
        values: NotRequired[str]  # path: the values of this step
        against: NotRequired[str | None]  # path: those of the unchanged program
        birth: NotRequired[dict[str, Any] | None]  # of the unchanged program
        instead_of: NotRequired[list[str]]  # files that must not be imported: a copy of each was changed

    class AnyTarget(Protocol):
        """What Session.target is in a process that was started for one step: rerun/target.py explains it,
        launch/inject.py puts it in place of one of the program's."""

        def attach(self, session: Session) -> None:
            """Session calls it as it is made; all but `prepare` and `directory` need it."""

        def prepare(self) -> None: ...
        def looks_for_overflow(self) -> bool: ...
        def arm(self) -> None: ...
        def directory(self) -> str | None: ...
        def was_made(self, ordinal: int) -> None: ...
        def begins(self, optimizer: Optimizer, bad: Sink | None) -> Verdict: ...
        def on_armed(self, optimizer: Optimizer | None) -> None: ...
        def left_out(self, optimizer: Optimizer) -> list[Any] | None: ...
        def on_window(self, optimizer: Optimizer, dropped: Sequence[Any]) -> bool | None: ...
        def on_written(self, optimizer: Optimizer, sinks: Sequence[Sink]) -> None: ...
        def on_left_bad(self, optimizer: Optimizer) -> None: ...
        def on_searched(self, optimizer: Optimizer, sinks: Sequence[Sink], before: Any) -> None: ...
        def on_searched_well(self, optimizer: Optimizer, window: Window, before: Any) -> None: ...
        def on_scaler_skip(self, optimizer: Optimizer, beyond: bool) -> None: ...
        def hand_begins(self, roots: Sequence[Tensor], is_wrapped: bool = False) -> bool: ...
        def hand_ended(self) -> None: ...
        def row_dropped(self) -> None: ...
        def row_raised(self, error: BaseException) -> None: ...
        def program_ended(self, error: BaseException | None) -> NoReturn: ...
        def failed(self) -> NoReturn: ...
