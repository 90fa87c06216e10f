"""Names of types, for annotations alone: nothing here is there while a program runs.

A module takes them under `if TYPE_CHECKING:`, which type checkers read and Python does not (the module sets it to False
itself, as importing `typing` takes time). So this file, and no other, may name classes of folders to its right."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any, Literal, NoReturn, ParamSpec, Protocol, TypedDict, TypeVar

    from torch import Generator as Generator, Tensor as Tensor
    from torch.autograd.graph import Node as Node
    from torch.nn import Module as Module
    from torch.optim import Optimizer as Optimizer
    from typing_extensions import Unpack as Unpack  # part of `typing` from Python 3.11 on

    from .._native import Generators as Generators, OwnProbe as OwnProbe
    from ..api import Watch as Watch
    from ..doctor.look import Look as DoctorLook  # noqa: F401
    from ..effects.object_snapshot import Ledger as Ledger
    from ..effects.rebound_attributes import Left as Left
    from ..rerun.rank_vote import Vote as Vote
    from ..session.allowed import Allowance as Allowance
    from ..session.session import Session as Session
    from .config import Config as Config
    from .family import Family as Family
    from .patches import Patches as Patches

    P = ParamSpec("P")  # what a function takes
    R = TypeVar("R")  # what it returns
    Function = TypeVar("Function", bound=Callable[..., Any])
    Thing = TypeVar("Thing")
    TextPath = str | os.PathLike[str]
    AnyPath = str | bytes | os.PathLike[Any]

    OnAlarm = Literal["stop", "skip", "warn", "raise", "rollback"]
    Level = Literal["gate", "tape", "trace"]
    Streaming = Literal["auto", "on", "off"]

    class WatchOptions(TypedDict, total=False):
        """The keywords of finitude.watch, for functions that pass them on."""

        on_alarm: OnAlarm | None
        level: Level | None
        tape_every: int | None
        report: TextPath | None
        runs: TextPath | None
        max_skips: int | None
        undo_mb: int | None
        restart_args: str | None
        capsules: int | None
        capsule_max: int | None
        experiments: int | None
        stream_gradients: Streaming | None
        redact: bool | None
        rules: str | list[str] | None

    # Dictionaries, by what they are of. Their keys: docs/report.schema.json, and where each is made.
    Document = dict[str, Any]  # a report
    Alarm = dict[str, Any]  # one of its alarms (Session.alarm_of)
    Birth = dict[str, Any]  # one of an alarm's births
    Operation = dict[str, Any]  # one operation of a trace
    Findings = dict[str, Any]  # what the engine found out from a trace (incident.Analysis)
    Window = dict[str, Any]  # the step of an optimizer that is open (_native.window)
    Pending = dict[str, Any]  # an alarm whose second run is under way (rewind.begin)
    Fingerprint = dict[str, Any]  # what a second run has to come to (incident.fingerprint)
    Order = dict[str, Any]  # what a second process is to explain (restart)

    Sink = tuple[str, str, Tensor]  # (kind, name, value) of something bad; kind: "loss", "gradient", "state" ...
    BadWindow = tuple[Optimizer | None, Alarm, list[Sink]]
    StartMagnitudes = dict[int, dict[int, float]]  # id(optimizer) -> id(parameter) -> magnitude before the first step
    Source = tuple[Any, Any, Any, Any]  # (iterator of a loader, batch, indices, generators before it)
    AppliedSteps = list[tuple[int, float, float, float]]  # (step, loss, largest gradient, learning rate)
    Verdict = bool | str | None  # True: the step is left out; None: it is applied; "again": its window runs once more

    class AnyTarget(Protocol):
        """What Session.target is in a process that was started for one step: rerun/target.py explains it,
        launch/inject.py puts it in place of one of the program's."""

        order: Order

        def attach(self, session: Session) -> None:
            """Session calls it as it is made; all but `prepare` and `directory` need it."""

        def prepare(self) -> None: ...
        def arm(self) -> None: ...
        def directory(self) -> str | None: ...
        def was_made(self, ordinal: int) -> None: ...
        def begins(self, optimizer: Optimizer, bad: Sink | None) -> Verdict: ...
        def on_armed(self, optimizer: Optimizer | None) -> None: ...
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
