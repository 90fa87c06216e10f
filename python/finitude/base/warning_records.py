"""What is known of a training before a value is not finite, and how often a policy acted, key by key, as a report
has it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import NotRequired  # part of `typing` from Python 3.11 on

    class AlarmOnset(TypedDict):
        """What grew first of all before a bad step."""

        step: int
        name: str  # of a parameter, "loss", "gradient" or "learning-rate"
        rate: float  # factor per step
        lr: float | None  # the learning rate at that step
        text: str

    class PolicyDone(TypedDict, total=False):
        """What was done about bad steps, where it was."""

        skipped: int
        went_back: int  # times to a copy
        lowered_rates: int

    class StepWarning(TypedDict):
        """What is noticed of a training whose values are still finite."""

        what: str  # one of config.WARNINGS
        name: str  # of a parameter, "loss" or "gradient"
        quantity: NotRequired[str]  # of growth: "loss", "gradient" or "weight"
        step: int
        since: int
        optimizer: str
        text: str
        evidence: dict[str, float]
        horizon: list[int] | None  # steps until values overflow: earliest and latest
