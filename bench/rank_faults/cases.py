"""The faults that are tried, and what has to hold after each: the run ends, every rank that is alive has reported,
and nothing that is reported is false."""

import dataclasses
import itertools
import json
import pathlib

from bench.rank_faults import points

PROGRAM = pathlib.Path(__file__).with_name("program.py")
PHASES = ("detection", "agreement", "vote", "second run", "capture", "report")
AGREE = ("no_sync", "fsdp2", "tp")  # exchange an integer before a step, under skip
TRAININGS = [(s, p) for s in ("ddp", "join", "fsdp2", "tp") for p in ("stop", "skip")] + [("no_sync", "skip")]


@dataclasses.dataclass(frozen=True)
class Case:
    strategy: str
    policy: str
    phase: str
    kind: str
    rank: int  # on which the fault comes
    seed: int = 0  # of weights and batches

    def __str__(self):
        return f"{self.strategy} {self.policy}, {self.phase}: {self.kind} of rank {self.rank}"

    def environment(self):
        return {"RANK_FAULT": json.dumps(dataclasses.asdict(self))}


def all_cases():
    """Both ranks in turn."""
    made = []
    for strategy, policy in TRAININGS:
        phases = [p for p in PHASES if p != "agreement" or (strategy in AGREE and policy == "skip")]
        for number, (phase, kind) in enumerate(itertools.product(phases, points.KINDS)):
            # With uneven inputs rank 0 takes no step any more as the bad one comes.
            is_last = strategy == "join" and phase != "detection"
            rank = 1 if is_last else (number + number // len(points.KINDS)) % 2
            made.append(Case(strategy, policy, phase, kind, rank))
    return made


def alarm_of(got, rank):
    return next((a for a in got.alarms if a["rank"] == rank), None)


def was_reached(got):
    return (got.folder / points.MARK).exists()


def weights(got):
    """{rank: what it ended with}"""
    words = [line.split() for line in got.out.splitlines() if line.startswith("weights of rank ")]
    return {int(w[3]): w[4] for w in words}


def wrong(case, got, expected=None):
    """What does not hold of a run that has ended, each as text. expected: the weights without the fault."""
    if got.report is None:
        return ["no report"]
    found = _missing_reports(case, got) if was_reached(got) else []
    for one in got.report.get("failures") or ():
        if "injected" not in one["text"]:
            found.append(f"internal failure {one['where']}: {one['text']}")
    for alarm in got.alarms:
        rank = alarm["rank"]
        found += [f"rank {rank}: {text}" for text in _wrong_birth(rank == 1 or case.strategy == "tp", alarm)]
        if alarm.get("capsule") and not pathlib.Path(alarm["capsule"], "capsule.json").is_file():
            found.append(f"rank {rank}: its capsule is not there")
    ended = weights(got)
    if len(ended) == 2 and expected is not None and ended != expected:
        found.append("both ranks continued, with other weights")
    return found


def _missing_reports(case, got):
    found = []
    other, ranks = 1 - case.rank, {a["rank"] for a in got.alarms}
    # With uneven inputs rank 0 takes no step as the bad one comes. Without an exchange of gradients a rank whose own
    # are finite hears of the bad step from the other one, if that is still there to say it.
    takes_no_part = case.strategy == "join"
    hears = case.strategy == "no_sync" and case.phase in ("detection", "agreement")
    if other not in ranks and not hears and not takes_no_part:
        found.append(f"rank {other} is alive and has reported no alarm")
    ring = f"rank {case.rank}: ended before it could write a report"  # a full disk; its ring has the alarm
    is_said = any(text.startswith(ring) and "an alarm" in text for text in got.watched["not_watched"])
    continues = case.kind in ("stop", "late", "disk") and case.rank == 1 and not takes_no_part
    if continues and case.rank not in ranks and not (case.kind == "disk" and is_said):
        found.append(f"rank {case.rank} continued and has reported no alarm")
    if case.kind == "kill" and not any("killed by SIGKILL" in a["text"] for a in got.advisories("killed")):
        found.append("it is not reported that the rank was killed")
    if case.kind == "kill" and got.code == 0:
        found.append("exit code 0 although a rank was killed")
    if got.report["outcome"] == "clean" and not takes_no_part:
        found.append("reported as clean")
    return found


def _wrong_birth(is_its_own, alarm):
    if is_its_own:
        ops = [b["op"] for b in alarm["births"] if b.get("op")]
        return [f"born in {ops[0]}"] if ops and ops[0] != "aten::log" else []
    own = [b["op"] for b in alarm["births"] if b["phase"] != "communication" and b.get("op")]
    return [f"made by itself, in {own[0]}"] if own else []
