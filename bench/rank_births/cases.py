"""Which births are tried, drawn with a seed, and what has to hold of the report of each."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random

PROGRAM = pathlib.Path(__file__).with_name("program.py")
STRATEGIES = ("ddp", "no_sync", "zero", "fsdp1", "fsdp2", "hsdp", "tp", "sp", "pp", "ep")
FORWARD = ("log", "sqrt", "division", "exp", "acos", "power", "masked", "empty", "half", "variance", "loss")
BACKWARD = ("root_of_zero", "norm_of_zero", "hidden_branch")
WRITTEN = ("data", "weight", "gradient")
KINDS = FORWARD + BACKWARD + WRITTEN
GROUPS = {
    **dict.fromkeys(FORWARD, "forward"),
    **dict.fromkeys(BACKWARD, "backward"),
    **dict.fromkeys(WRITTEN, "written"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    strategy: str
    kind: str
    ranks: int
    rank: int  # on which the value is born
    twin: int | None  # another rank that has the same batch, in which the same value is written
    step: int
    micro_batch: int
    policy: str
    seed: int  # of weights and batches

    def __str__(self) -> str:
        where = f"rank {self.rank} of {self.ranks}, step {self.step}"
        return f"{self.strategy} {self.policy}: {self.kind} on {where}"

    def environment(self) -> dict[str, str]:
        return {"RANK_BIRTH": json.dumps(dataclasses.asdict(self))}

    def line(self) -> int:
        """Of program.py, from 1."""
        (found,) = [
            number
            for number, text in enumerate(PROGRAM.read_text().splitlines(), 1)
            if text.endswith(f"# born: {self.kind}")
        ]
        return found


def drawn(count: int, seed: int = 0) -> list[Case]:
    """Strategies in turn; one case of ten has four ranks."""
    random_of = random.Random(seed)
    return [_drawn(STRATEGIES[k % len(STRATEGIES)], k, random_of) for k in range(count)]


def _drawn(strategy: str, number: int, random_of: random.Random) -> Case:
    kind = random_of.choice(KINDS)
    ranks = 4 if random_of.random() < 0.1 else 2
    rank, twin = random_of.randrange(ranks), None
    if strategy == "pp" and kind in ("data", "loss"):
        rank = 0 if kind == "data" else ranks - 1  # the only one that reads the batch, or has a loss
    if strategy in ("tp", "sp") and kind in ("data", "loss"):
        rank, twin, ranks = 0, 1, 2
    micro_batch = (
        random_of.randrange(2) if strategy == "no_sync" and kind not in ("gradient",) else int(strategy == "no_sync")
    )
    step = random_of.randrange(1, 6)
    policy = "skip" if random_of.random() < 0.3 else "stop"
    return Case(strategy, kind, ranks, rank, twin, step, micro_batch, policy, 1000 + number)


def may_stay_finite(case: Case) -> bool:
    """Under `stop`, ranks that see finite values only are not asked: the launcher ends them."""
    in_backward = GROUPS[case.kind] == "backward" and case.strategy in ("tp", "pp")
    return case.policy == "stop" and (case.kind == "gradient" or in_backward)


def wrong(case: Case, alarms: list[dict]) -> list[str]:
    """What does not hold, each as text: nothing where the report names step, rank and line."""
    if not alarms:
        return ["no alarm"]
    found = [f"rank {a['rank']}: step {a['step']}" for a in alarms if a["step"] != case.step]
    if not may_stay_finite(case):
        found += [f"rank {rank}: no alarm" for rank in sorted(set(range(case.ranks)) - {a["rank"] for a in alarms})]
    first = next((a for a in alarms if a["births"]), None)
    if first is None:
        return [*found, "no birth"]
    birth = first["births"][0]
    if first["rank"] not in (case.rank, case.twin):
        found.append(f"born on rank {first['rank']}")
    if birth["line"] != case.line() or pathlib.Path(birth["file"] or "").name != PROGRAM.name:
        found.append(
            f"born at {pathlib.Path(birth['file'] or '').name}:{birth['line']} {birth['op']}, not line {case.line()}"
        )
    for alarm in alarms:
        own = alarm["rank"] in (case.rank, case.twin)
        if not own and alarm["births"] and alarm["births"][0]["phase"] != "communication":
            found.append(f"rank {alarm['rank']}: {alarm['births'][0]['phase']} {alarm['births'][0]['op']}")
    return found
