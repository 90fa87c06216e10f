"""Options: command line over environment over file (docs/contract.md, "Options of run")."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import shlex

from . import working_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .types import Level, OnAlarm

STREAM = ("auto", "on", "off")
ON_ALARM = ("stop", "skip", "warn", "raise", "rollback")
THEN = ("skip", "lower-rate", "rollback", "stop", "raise")
CHECKPOINTS = ("warn", "refuse", "quarantine", "off")
LEVELS = ("gate", "tape", "trace")
# Of a training whose values are still finite.
WARNINGS = (
    "growth",
    "spike",
    "outlier",
    "vanishing",
    "scale",
    "dead",
    "clipping",
    "norm",
    "no-learning",
    "headroom",
    "vanishing-depth",
    "exploding-depth",
    "logits",
    "attention",
    "dropped",
)

MOST = 2**31 - 1  # of a whole number: the engine keeps it in 32 bits

OTHER_VARIABLES = ("config", "debug", "family", "force_isa", "inject", "restart", "resumed_from")


class UsageError(Exception):
    """A wrong option or key; the message names the nearest right one."""


@dataclasses.dataclass
class Config:
    on_alarm: OnAlarm = "stop"
    level: Level = "gate"
    tape_every: int = 0
    replicas_every: int = 0  # steps between two comparisons of replicated parameters; 0: none
    signals_together: float = 0.0  # seconds in which a signal has to reach all ranks in one step; 0: as they come
    verify: str = ""  # every=N: one healthy step in N is computed twice; "": none
    guard_memory: int = 0  # a bad step is explained by a second process with guard zones around tensors' memory
    report: str = ""
    runs: str = "finitude-runs"
    undo_mb: int = 0
    rollback_every: int = 0  # steps between two copies to go back to; 0: none
    rollback_mb: int = 0  # for these copies; 0: a quarter of what is free
    rollback_lr: float = 1.0  # times the learning rate, each time that training goes back to a copy
    lower_rate_factor: float = 0.5  # times the learning rate, where the policy is lower-rate
    rollback_skip_rows: int = 0  # the rows of a step that training went back from are not drawn again
    max_skips: int = 10
    max_bad: int = 0  # bad steps of an optimizer in all; 0: no limit
    max_bad_share: str = ""  # P or P/W: of the last W steps, 100 where it is not said; "": no limit
    then: str = ""  # policies with commas, which follow where max_skips in a row were not enough
    cool_down: int = 100  # good steps after which on_alarm holds again
    restart_args: str = ""
    capsules: int = 8
    capsule_max: int = 2048
    experiments: int = 60
    capsule_of_step: int = 0  # a healthy step that leaves a capsule; 0: none
    redact: int = 0
    quiet: int = 0
    rules: str = ""  # files with rules of the user's own, separated by os.pathsep
    stream_gradients: str = "auto"
    warnings: str = "all"  # or off, or names of WARNINGS with commas between them
    grad_warn: float = 0.0  # a 2-norm of all gradients above it is warned of; 0: none is
    checkpoints: str = "warn"
    on_event: str = ""  # a command that is started at each event, or an address that gets the event
    dump: str = ""  # or statistics, checksums, tensors: of the steps and parts that the next two name
    dump_steps: str = "every=100"  # base/dump_plan.py
    dump_only: str = ""
    dump_mb: int = 1024  # of all dumps of a process; 0: no limit
    golden: str = ""  # dumps of another run, with which those of this one are compared
    dump_control: str = ""  # a TOML file that changes these while the training runs
    record_env: str = ""  # names of variables of the environment, with commas, for run.json
    skip_rows: str = ""  # a skip list: rows that no loader draws
    seed: str = ""  # of every generator, before the program begins; "": none
    selftest: str = ""  # an order of `finitude selftest`; nothing that a user sets reaches it


OPTIONS = [f for f in dataclasses.fields(Config) if f.name != "selftest"]


def _is_share(text):
    """No other text than src/decide/policy.cpp takes: no engine is loaded where the command line checks its options."""
    parts = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(?:/([0-9]+))?", text)
    return parts is not None and 0 < float(parts[1]) <= 1 and 1 <= int(parts[2] or 1) <= 1_000_000


def _nearest(word, words, are_named=False):
    """are_named: the message names the words already."""
    close = difflib.get_close_matches(word, words, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return "" if are_named else f"; known: {', '.join(words)}"


def _set(config, key, value, source):
    fields = {f.name: f for f in OPTIONS}
    name = key.replace("-", "_")
    if name not in fields:
        raise UsageError(f"{source}: unknown key {key!r}{_nearest(name, sorted(fields))}")
    if isinstance(fields[name].default, float):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{source}: {key} takes a number, not {value!r}") from None
        if not 0 <= value < math.inf:
            raise UsageError(f"{source}: {key} is a finite number, and not negative")
    elif isinstance(fields[name].default, int):
        try:
            value = int(value)
        except (TypeError, ValueError):
            raise UsageError(f"{source}: {key} takes a whole number, not {value!r}") from None
        if value < 0:
            raise UsageError(f"{source}: {key} cannot be negative")
        if value > MOST:
            raise UsageError(f"{source}: {key} is at most {MOST}")
    else:
        value = os.pathsep.join(map(str, value)) if name == "rules" and isinstance(value, list) else str(value)
    if name == "rules":
        value = os.pathsep.join(os.path.abspath(p) for p in value.split(os.pathsep) if p)
    choices = {"on_alarm": ON_ALARM, "level": LEVELS, "stream_gradients": STREAM, "checkpoints": CHECKPOINTS}.get(name)
    if choices and value not in choices:
        raise UsageError(
            f"{source}: {key} is one of {', '.join(choices)}, not {value!r}{_nearest(value, choices, are_named=True)}"
        )
    if name == "warnings":
        for kind in value.replace(" ", "").split(",") if value not in ("all", "off") else ():
            if kind not in WARNINGS:
                raise UsageError(f"{source}: {key} knows no {kind!r}{_nearest(kind, (*WARNINGS, 'all', 'off'))}")
    if name in ("dump", "dump_steps", "dump_only"):
        from . import dump_plan  # processes that never train import this module

        try:
            if name == "dump":
                dump_plan.check_kind(value)
            else:
                (dump_plan.parse_steps if name == "dump_steps" else dump_plan.parse_only)(value)
        except ValueError as e:
            raise UsageError(f"{source}: {key}: {e}") from None
    if name == "golden" and value:
        from . import golden_dumps

        try:
            golden_dumps.find(value)
        except ValueError as e:
            raise UsageError(f"{source}: {e}") from None
    if name == "then":
        value = value.replace(" ", "")
        for policy in value.split(",") if value else ():
            if policy not in THEN:
                raise UsageError(f"{source}: {key} takes {', '.join(THEN)}, with commas, not {policy!r}")
    if name == "lower_rate_factor" and not 0 < value < 1:
        raise UsageError(f"{source}: {key} is above 0 and below 1")
    if name == "max_bad_share" and value and not _is_share(value):
        raise UsageError(
            f"{source}: {key} takes a share, or a share of a number of steps: 0.05 or 0.05/200, not {value!r}"
        )
    if name == "seed" and value and not (re.fullmatch("[0-9]{1,20}", value) and int(value) < 2**64):
        raise UsageError(f"{source}: {key} takes a whole number from 0 to 2**64 - 1, not {value!r}")
    if name == "verify" and value:
        every = re.fullmatch(r"(?:every=)?([0-9]{1,9})", value)
        if every is None:
            raise UsageError(f"{source}: {key} takes every=N, not {value!r}")
        value = f"every={int(every[1])}" if int(every[1]) else ""
    if name in ("restart_args", "on_event"):
        try:
            shlex.split(value)
        except ValueError as e:
            raise UsageError(f"{source}: {key} cannot be split into words: {e}") from None
    if name == "on_event" and is_address(value) and not _names_a_host(value):
        raise UsageError(f"{source}: {key} takes a command, or an address with a host: https://host/path")
    setattr(config, name, value)


def is_address(on_event: str) -> bool:
    """Is it an address to send events to, and no command?"""
    return on_event.strip().lower().startswith(("https://", "http://")) and len(on_event.split()) == 1


def _names_a_host(address):
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address.strip())
        return bool(parts.hostname) and (parts.port is None or parts.port > 0) and address.strip().isascii()
    except ValueError:
        return False


def read_toml(path: str) -> dict[str, Any] | None:
    """None where this Python has no reader of TOML. Raises OSError, and UsageError for what is no TOML."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError:
            return None
    with open(path, "rb") as f:
        try:
            return tomllib.load(f)
        except (ValueError, RecursionError) as e:  # no TOML, or no text
            raise UsageError(f"{path}: {e}") from None


def _ours(document):
    """The table of a pyproject.toml that is ours, or None where it has none."""
    tool = document.get("tool")
    ours = tool.get("finitude") if isinstance(tool, dict) else None
    return ours if isinstance(ours, dict) else None


def _absolute(path):
    try:
        return os.path.abspath(path)
    except OSError as e:
        raise UsageError(f"the working directory cannot be found: {e.strerror}") from None


def _has_place(path):
    """Whether the folder of a file is there or may be made: below the working directory, or in one that exists. A
    longer path that leads nowhere is a slip of the pen more often than a wish."""
    folder = os.path.dirname(path)
    cwd = working_folder.current()
    below = bool(cwd) and os.path.commonpath([folder, cwd]) == cwd
    return below or os.path.exists(folder) or os.path.isdir(os.path.dirname(folder))


def misspelt(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each variable that is no option's, and whose name is nearly that of one. Who started a watched program
    was warned."""
    known = {
        name.upper(): f"FINITUDE_{name.upper()}" for name in (*(field.name for field in OPTIONS), *OTHER_VARIABLES)
    }
    if "FINITUDE_FAMILY" in environ or "FINITUDE_RESTART" in environ:
        return []
    unknown = sorted(name for name in environ if name.startswith("FINITUDE_") and name not in known.values())
    near = [
        (name, difflib.get_close_matches(name.upper().removeprefix("FINITUDE_"), known, 1, 0.75)) for name in unknown
    ]
    return [
        f"the environment variable {name} is not known; did you mean {known[close[0]]}?"
        for name, close in near
        if close
    ]


def rolls_back(config: Config) -> bool:
    """Does any of its policies?"""
    return "rollback" in (config.on_alarm, *config.then.split(","))


def keeps_step(config: Config) -> bool:
    """Nobody else records steps, and a capsule may hold values."""
    return config.level == "gate" and not config.tape_every and not config.verify and not config.redact


def at_odds(config: Config) -> list[str]:
    """A line for each option that cannot do all of what it says, as the others are."""
    lines = []
    if config.then and config.on_alarm not in ("skip", "rollback"):
        lines.append(f"--then has no effect with --on-alarm {config.on_alarm}: it follows skip or rollback")
    if config.rollback_every and not rolls_back(config):
        lines.append("--rollback-every takes no copies without --on-alarm rollback (or --then rollback)")
    if config.rollback_skip_rows and not (config.rollback_every and rolls_back(config)):
        lines.append("--rollback-skip-rows has no effect without --on-alarm rollback and --rollback-every")
    if config.redact and (config.dump or config.dump_control or config.golden):
        lines.append("--dump writes nothing with --redact: statistics are values")
    if config.dump.startswith("statistics") and "rows=" in config.dump_only:
        lines.append("--dump-only rows= has no effect with --dump statistics: those of operators are of whole tensors")
    if config.verify and (config.level != "gate" or config.tape_every):
        lines.append("--verify computes no step twice with --tape-every, --level tape or --level trace")
    if config.capsule_of_step and not keeps_step(config):
        lines.append(
            "--capsule-of-step keeps none with --redact, --tape-every, --verify, --level tape or --level trace"
        )
    if config.guard_memory and config.on_alarm == "raise":
        lines.append("--guard-memory has no effect with --on-alarm raise: no step is run again")
    if rolls_back(config) and not config.undo_mb and not config.rollback_every:
        lines.append(
            "--on-alarm rollback has no copies to go back to (--undo-mb 0, --rollback-every 0): a bad step is skipped, "
            "as with skip; "
            "a step that the optimizer itself ruins cannot be undone, except where copies are cheap, and stops the run"
        )
    return lines


def load(
    command_line: Mapping[str, Any],
    config_file: str | None = None,
    environ: Mapping[str, str] = os.environ,
    directory: str = ".",
) -> Config:
    """The configuration from all sources. `command_line`: {key: value} as given there."""
    config = Config()
    config_file = config_file or environ.get("FINITUDE_CONFIG")
    if config_file:
        try:
            table = read_toml(config_file)
        except OSError as e:
            raise UsageError(f"cannot read {config_file}: {e.strerror}") from None
        if table is None:
            raise UsageError(f"{config_file}: reading TOML needs Python 3.11 or the package tomli")
        ours = _ours(table)
        table = table if ours is None else ours
        source = config_file
    else:
        path = os.path.join(directory, "pyproject.toml")
        table, source = {}, path
        if os.path.isfile(path):
            try:
                table = _ours(read_toml(path) or {}) or {}
            except (OSError, UsageError):
                table = {}  # a broken pyproject.toml is the user's other tools' business
    for key, value in table.items():
        _set(config, key, value, source)
    for field in OPTIONS:
        name = "FINITUDE_" + field.name.upper()
        if environ.get(name):
            _set(config, field.name, environ[name], f"environment variable {name}")
    for key, value in command_line.items():
        _set(config, key, value, "--" + key.replace("_", "-"))
    for key in (
        "report",
        "runs",
        "dump_control",
        "golden",
        "skip_rows",
    ):  # where they are: the program may change its directory
        if path := getattr(config, key):
            setattr(config, key, _absolute(path))
    if config.report and not _has_place(config.report):
        raise UsageError(
            f"--report {config.report}: there is no folder {os.path.dirname(os.path.dirname(config.report))}"
        )
    return config
