"""What an alarm says of others. One finding is explained once: an alarm that fails as an explained one did is not run
again; it is a repeat, and says of which step. What it fails by is not known then, but that its weights have diverged as
those of the step before. One backward writes gradients of several optimizers: an alarm at one of them speaks for the
others, and its second run adds to their gradients."""

from __future__ import annotations

import torch

from .. import _native
from ..program import optimizer_members, ranks, sharding, sinks as sinks_of
from ..report import incident, not_reproduced
from ..report.growth import DIVERGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .._native import Known
    from ..base.types import Alarm, Allowed, Config, Optimizer, Sink, Tensor, Vote
    from ..effects.object_snapshot import Ledger
    from ..effects.rebound_attributes import Left
    from ..report.new_alarms import Damage
    from .deferred_restart import Rest
    from .under_way import SecondRuns

NO_MORE = "no second run was tried any more"
FIGURES = ("numel", "nan", "inf", "zero", "min", "max", "absmax")
MOVES_WEIGHTS = DIVERGES | {"optimizer-arithmetic"}  # what a step writes on such weights follows from them
FRAMES = 8  # of the program, the innermost, that tell one place from another
BY_CHANCE = 3  # explained steps in a row after which those that follow are repeats, though each has its own bad samples
KEPT = 16  # alarms that a later one may be part of


def _is_same_value(one, other):
    """Of two tensors whose finite part is not all zero: do they have the same figures, bit for bit?"""
    return one.get("absmax", 0) > 0 and all(one.get(key) == other.get(key) for key in FIGURES)


def trace_continues(config: Config) -> None:
    """With --level trace every step is traced, those after a second run too."""
    if config.level == "trace":
        _native.trace_start()


def _sign(ordinal, alarm):
    """What alarms of one finding have in common before any of them is explained, as far as it costs nothing: of a loss
    also the kinds of operations that made it, and where the program is."""
    sink = alarm["sink"]
    is_loss = sink["kind"] == "loss"
    value = alarm["loss"] if is_loss and isinstance(alarm["loss"], str) else None
    graph = _native.graph_of_bad_loss() if is_loss else 0
    name = "" if is_loss else sink["name"]
    return ordinal, sink["kind"], name, alarm["harmless"], value, graph, _native.user_place(FRAMES)


def _point_to(first, alarm, text):
    alarm["repeat_of"] = first["step"]
    alarm["cause"] = {"class": first["cause"]["class"], "confidence": "possible", "experiments": [], "text": text}


class Repeats:
    def __init__(self):
        self._first = {}  # sign -> the alarm that is explained
        # number of an optimizer -> its last alarm's step, how many in a row are explained, how many there are
        self._row = {}
        self._explained_signs = {}  # number of an optimizer -> the sign of its last explained alarm
        self._signs = {}  # number of an optimizer -> (step, sign) of the last alarm that was asked about
        self._diverged: dict[int, Alarm] = {}  # number of an optimizer -> its last explained alarm, of a divergence
        self._explained: dict[int, Alarm] = {}  # number of an optimizer -> its last explained alarm

    def take_written(self, alarm: Alarm) -> bool:
        """Is what the step wrote explained by the alarm of its loss, which came of weights that had grown?"""
        first = self._explained.get(alarm["optimizer_ordinal"])
        if first is None or first["step"] != alarm["step"] or first["cause"]["class"] not in MOVES_WEIGHTS:
            return False
        _point_to(first, alarm, "explained with the loss of this step; not run again")
        return True

    def take_applied(self, alarm: Alarm, ordinal: int, applied: int | None) -> bool:
        """Is it one of the bad steps behind an explained one that was applied? applied: the first that was."""
        first = self._explained.get(ordinal)
        if first is None or applied != first["step"] or not applied < alarm["step"]:
            return False
        _point_to(first, alarm, f"step {applied}, which is explained, was bad and was applied; not run again")
        return True

    def take(self, alarm: Alarm, is_damaged: bool = False) -> bool:
        """Is it one? A step without harm, or one that follows without a good step between. Where only some samples were
        bad each step may have its own. is_damaged: a bad step was applied, and what it left may fail in other places.
        """
        ordinal = alarm["optimizer_ordinal"]
        last, explained, _ = self._row.get(ordinal, (None, 0, 0))
        in_a_row = last is not None and alarm["step"] == last + 1
        sign = _sign(ordinal, alarm)
        self._signs[ordinal] = alarm["step"], sign  # before a second run, which may end in another place
        first = self._first.get(sign) or (self._follows(ordinal, sign, is_damaged) if in_a_row else None)
        if first is None or first["step"] == alarm["step"]:
            return False
        diverges = first["cause"]["class"] in DIVERGES
        own_samples = not diverges and bool(first["births"][0].get("rows")) and explained < BY_CHANCE
        if not alarm["harmless"] and (not in_a_row or own_samples):
            return False
        text = (
            f"as step {first['step']}, which is explained: the weights have diverged; not run again"
            if diverges and in_a_row
            else f"at the same sink as step {first['step']}, which is explained; this step was not run again"
        )
        _point_to(first, alarm, text)
        return True

    def _follows(self, ordinal, sign, is_damaged):
        """The explained alarm before it that this one comes of, or None."""
        last = self._explained_signs.get(ordinal) if is_damaged else None
        return self._first[last] if last and last[:5] == sign[:5] else self._diverged.get(ordinal)

    def stopped(self) -> None:
        """The program was stopped. What it does after that, in another cell or behind an `except`, is explained for
        itself, unless it continues with weights that have diverged."""
        self._row = {ordinal: row for ordinal, row in self._row.items() if ordinal in self._diverged}

    def row(self, ordinal: int) -> int:
        """How many alarms in a row, one for each step."""
        return self._row[ordinal][2] if ordinal in self._row else 0

    def note(self, ordinal: int, alarm: Alarm) -> None:
        """An alarm that is decided."""
        last, explained, length = self._row.get(ordinal, (None, 0, 0))
        if last is None or alarm["step"] not in (last, last + 1):
            explained = length = 0
        is_explained = bool(alarm["births"]) and alarm.get("rerun_by", "none") != "none"
        self._row[ordinal] = alarm["step"], explained + is_explained, length + (length == 0 or alarm["step"] != last)
        if is_explained and "repeat_of" not in alarm:
            self._explained[ordinal] = alarm
            self._diverged.pop(ordinal, None)
            if alarm["cause"]["class"] in DIVERGES:
                self._diverged[ordinal] = alarm
            asked_at, sign = self._signs.get(ordinal, (None, None))
            sign = sign if asked_at == alarm["step"] else _sign(ordinal, alarm)
            first = self._first.setdefault(sign, alarm)
            self._explained_signs[ordinal] = sign
            if first["births"][0]["op"] and alarm["births"][0]["phase"] == "state":
                self._first[sign] = alarm  # those behind it begin with the same


class RecentAlarms:
    """The last alarms, by the numbers under which the gradients of other optimizers know them."""

    def __init__(
        self, config: Config, allowed: Allowed, second_runs: SecondRuns, damage: Damage, known: Known, rest: Rest
    ):
        """known: bad tensors of earlier alarms. rest: alarms that are explained once the program has ended."""
        self._config, self._allowed, self._second_runs, self._damage = config, allowed, second_runs, damage
        self.known, self._rest = known, rest
        self._alarms, self._count = {}, 0
        self._beside: Any = (
            None,
            None,
        )  # an alarm whose gradients come of the backward that another one reports; that one
        self.follower: Alarm | None = None  # the last alarm that says what another one has said
        self._left: list[Left] = []  # what the step of the last alarm leaves in places that each step re-binds
        self._bad = []  # what was bad when the last alarm came up
        self._explained = {}  # (optimizer, sink) -> the last step that failed there and has a birth
        self._alike = {}  # kind of sink -> the last alarm at one that has a birth, of whichever optimizer
        self.repeats = Repeats()

    def runs_again(self, alarm: Alarm, kind: str, where: str, traced: bool, vote: Vote | None) -> bool:
        """Is the step of this alarm run again, in any way, or where one like it is explained, in place? vote: of
        several ranks on that."""
        may_be_allowed = self._allowed.is_any
        if where in ("window", "skipped") and not may_be_allowed and self.is_repeat(alarm):
            return False
        if where == "written" and not may_be_allowed and not ranks.several() and self.repeats.take_written(alarm):
            return False
        if self._second_runs.left.take(kind, alarm["harmless"], may_be_allowed, traced):
            return True
        # Where bad steps are applied the next ones are bad for that, and where all is NaN the bits of all steps
        # are the same.
        in_place = (
            where == "window" and self._config.on_alarm != "warn" and not self._damage and (vote or not ranks.several())
        )
        if in_place and self._second_runs.left.take_in_place():
            return True
        if self._config.on_alarm != "raise":
            incident.note_failed_way(alarm, NO_MORE)
        return False

    def is_repeat(self, alarm):
        """Then it says so."""
        return self.repeats.take(alarm, alarm["optimizer_ordinal"] in self._damage)

    def note_bad(self, alarm: Alarm, sinks: Iterable[Sink]) -> None:
        """Before anything is run again, which may bind other tensors to the same names."""
        is_asked = self._config.on_alarm != "raise" or alarm["sink"]["kind"] not in ("loss", "gradient")
        self._bad = not_reproduced.note(sinks) if is_asked else []  # nothing is run again, and no weights are bad

    def mark_reported(self, optimizer: Optimizer, alarm: Alarm) -> None:
        """Bad gradients of the same backward at other optimizers are not news any more."""
        self._count += 1
        self._alarms[self._count] = alarm
        self._alarms.pop(self._count - KEPT, None)
        _native.mark_others_reported(optimizer, self._count)
        for other in sinks_of.watched_optimizers():
            if other is optimizer or _native.reported_step(other)[0] == self._count:
                self.known.note(tensor for _, _, tensor in sinks_of.of_optimizer(other))
        self.known.note_frames()
        self.known.carry(self._left)

    def point_back(self, ordinal: int, alarm: Alarm) -> None:
        self._left = self.known.left_by(ordinal, alarm["step"])
        self.repeats.note(ordinal, alarm)
        if "repeat_of" not in alarm:
            self._point_back(ordinal, alarm)

    def _point_back(self, ordinal, alarm):
        """An alarm that nothing explained names the step before it that failed at the same place and is explained.
        Whether their reason is the same is not known."""
        sink = alarm["sink"]
        at = (ordinal, sink["kind"], sink["name"])
        self._hand_on(alarm)
        if alarm["births"]:
            self._explained[at] = alarm["step"]
            self._alike[sink["kind"]] = ordinal, alarm["optimizer"], alarm["step"]
        elif alarm["cause"]["text"] == incident.NOT_RUN and self.repeats.take_applied(
            alarm, ordinal, self._damage.applied_at(ordinal)
        ):
            pass
        elif alarm["cause"]["text"] == incident.NOT_RUN and at in self._explained:
            where = "loss" if sink["kind"] == "loss" else f"{sink['kind']} {sink['name']}"
            alarm["cause"] = {
                **alarm["cause"],
                "text": f"not run again; step {self._explained[at]} failed at the same {where} and is explained",
            }
        elif (
            alarm["cause"]["text"] == incident.NOT_RUN
            and alarm is self._beside[0]
            and (first := self._beside[1])
            and first["births"]
        ):
            text = (
                f"not run again; the same backward left bad gradients of {first['optimizer']}, "
                f"whose alarm at step {first['step']} "
                f"({first['sink']['name']}) is explained"
            )
            self._rest.drop(alarm)
            alarm["cause"] = {**alarm["cause"], "text": text}
        elif (
            alarm["cause"]["text"] == incident.NOT_RUN
            and alarm.get("rerun", "not-run") == "not-run"
            and self._alike.get(sink["kind"], (ordinal,))[0] != ordinal
        ):
            _, name, step = self._alike[sink["kind"]]
            text = (
                f"not run again, as few steps of a kind are; that a {sink['kind']} of "
                f"{'another ' * (name == alarm['optimizer'])}{name} was "
                f"bad at its step {step} is explained"
            )
            alarm["cause"] = {**alarm["cause"], "text": text}
        if alarm["cause"]["text"] == incident.NOT_RUN and alarm.get("rerun", "not-run") != "not-run":
            text = (
                "the step came out finite when it was run again"
                if alarm["rerun"] == "transient"
                else "the step was run again, and no operation of it was seen to make the value"
            )
            alarm["cause"] = {**alarm["cause"], "text": text}
        if self._bad:
            not_reproduced.add_to(alarm, self._bad)

    def _hand_on(self, alarm):
        """A value that came in bad, and that was there before this step, is reported by the step that failed by it
        first."""
        birth = alarm["births"][0] if alarm["births"] else None
        if birth is None or birth["op"] or not birth["outputs"]:
            return
        came = birth["outputs"][0]
        for first in self._alarms.values():
            if (
                first["births"]
                and first["births"][0]["op"]
                and any(_is_same_value(came, made) for made in first["births"][0]["outputs"])
            ):
                self.follow(alarm, first)
                alarm["rerun_text"] += (
                    f"; the bad value came in with what is there since step {first['step']} of "
                    f"{first['optimizer']}, whose alarm reports it"
                )
                return
        if birth["phase"] == "state" and (last := self.computed(birth.get("name"))):
            alarm["cause"] = {
                **alarm["cause"],
                "text": f"{alarm['cause']['text']}; step {last['step']} of {last['optimizer']}, "
                "which is explained, has computed it",
            }
            return
        last = self._alarms.get(self._count)
        if (
            last
            and last["births"]
            and any(_is_same_value(came, _native.statistics(t) or {}) for t in self.known.still_held())
        ):
            alarm["cause"] = {
                **alarm["cause"],
                "text": f"{alarm['cause']['text']}; it did at step {last['step']} of "
                f"{last['optimizer']}, which is explained",
            }

    def leave(self, optimizer: Optimizer | None, alarm: Alarm, ledger: Ledger) -> None:
        """Before what the second run has changed is put back: what the step leaves in places that each step
        re-binds."""
        names = {id(b): name for name, b in optimizer_members.buffers(optimizer)} if optimizer is not None else {}
        self.known.leave(alarm.get("optimizer_ordinal"), alarm["step"], ledger.left(names))

    def left_before(self, alarm: Alarm) -> list[Left]:
        """With that the step of the alarm began."""
        return self.known.left_by(alarm.get("optimizer_ordinal"), alarm["step"] - 1)

    def take_over(self, optimizer: Optimizer, alarm: Alarm) -> bool:
        """True: the bad gradients come from a backward that an alarm at another optimizer has explained already, and
        this one says so instead of being run again."""
        number, is_explained = _native.reported_step(optimizer)
        first = self._alarms.get(number)
        # Several ranks run a step again together or not at all, and not all of them may know the loss.
        if first is None or not (is_explained or ranks.several()):
            self._beside = alarm, (self._beside[1] if first is self._beside[0] else None) or first
            return False
        alarm["rerun"], alarm["rerun_by"] = first["rerun"], first["rerun_by"]
        alarm["rerun_verified"] = first["rerun_verified"]
        self.follow(alarm, first)
        alarm["rerun_text"] = (
            f"its gradients come from the backward that the alarm of {first['optimizer']} at step "
            f"{first['step']} reports"
        )
        return True

    def computed(self, name: str | None) -> Alarm | None:
        """The alarm of the last step that failed, if it is explained and that step has computed what this name of the
        program's holds; else None."""
        last = self._alarms.get(self._count)
        return last if last and last["births"] and any(name == n for n, _ in self.known.carried) else None

    def follow(self, alarm: Alarm, first: Alarm) -> None:
        """This alarm says what that one has said."""
        incident.take_over(alarm, first)
        self.follower = alarm


class Gradients:
    """Of parameters that the optimizers of a second run do not step: its backward adds to them once more."""

    def __init__(self, optimizer: Optimizer, stepping: Sequence[Tensor], in_place: bool):
        """in_place: they are memory of somebody's (DistributedDataParallel's buckets) and stay where they are."""
        own = {id(p) for p in stepping}
        params = {id(p): p for o in sinks_of.watched_optimizers() for p in optimizer_members.parameters(o)}
        params.update((id(p), p) for module in optimizer_members.roots(optimizer) for p in module.parameters())
        self._in_place = in_place
        self._kept = []
        for p in params.values():
            if id(p) in own:
                continue
            copy = sharding.copied(p.grad) if p.grad is not None else None
            self._kept.append((p, copy if in_place else p.grad))
            if not in_place and copy is not None:
                p.grad = copy

    def put_back(self) -> None:
        with torch.no_grad():
            for p, grad in self._kept:
                if self._in_place and grad is not None and p.grad is not None and not p.grad.is_sparse:
                    p.grad.copy_(grad)
                else:
                    p.grad = grad
