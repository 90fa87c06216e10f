"""What `finitude ctl` asks of this run. The file is looked at where something rare happens (an alarm, a warning), and
at each step only of a run that dumps steps: a healthy step of any other costs nothing for it."""

from __future__ import annotations

import dataclasses
import json
import os

from .. import _native
from ..base import compat, config, control
from ..base.say import say
from ..program import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base.types import Config, PolicyMachine
    from ..report.document import Report


class Control:
    def __init__(self, settings: Config, report: Report):
        """settings: of the run; the policy in it is changed."""
        self._config, self._report = settings, report
        self._begun_with = dataclasses.replace(settings)
        self._stamp = (0, 0)
        self._asked: dict[str, str] = {}

    def has_changed(self) -> bool:
        """Since it was read last? One question to the file system."""
        try:
            found = os.stat(os.path.join(self._report.directory or "", control.NAME))
        except OSError:
            return False
        stamp = found.st_mtime_ns, found.st_size
        if not self._report.directory or stamp == self._stamp:
            return False
        self._stamp = stamp
        return True

    def _read_file(self):
        try:
            self._asked = control.read(self._report.directory or "")
        except (OSError, config.UsageError, control.NoReader) as e:
            say(f"finitude: {control.NAME} is not obeyed: {e}\n")

    def asked(self) -> dict[str, str]:
        """{key of control.KEYS: value}"""
        if self.has_changed():
            self._read_file()
        return self._asked

    def new_policy(self, ordinal: int, call: int) -> PolicyMachine | None:
        """An alarm is there. The settings of the run are changed as it says. None: what it
        says of policies is what held before.

        ordinal, call: of the optimizer and its step, in which other ranks may be in this alarm too."""
        before = _policy(self._config)
        given = {key: value for key, value in self.asked().items() if key in control.POLICY}
        if ranks.several():
            try:
                given = _of_all_ranks(given, f"finitude/policy/{ordinal}/{call}")
            except (
                RuntimeError,
                ValueError,
                OSError,
                config.UsageError,
            ) as e:  # the store is gone, or holds something else
                if given:
                    say(f"finitude: {control.NAME} is not obeyed at this alarm: the ranks could not agree on it: {e}\n")
                return None  # what held before is the same on all of them
        asked = config.load(given, environ={}, directory=os.devnull)
        for key in control.POLICY:
            name = key.replace("-", "_")
            setattr(self._config, name, getattr(asked if key in given else self._begun_with, name))
        now = _policy(self._config)
        if now == before:
            return None
        changed = " ".join(f"{key}={new}" for key, old, new in zip(control.POLICY, before, now) if old != new)
        say(f"finitude: {control.NAME}: from this alarm on {changed}\n")
        _native.set_device_policy(self._config.on_alarm)
        return machine(self._config)


def _of_all_ranks(given, key):
    """What the first rank in this alarm was asked. `finitude ctl` writes a file for each rank, one after another: ranks
    that each obeyed their own could do different things about one step. No rank waits for another one."""
    store = compat.group_store()
    if store is None:
        return given
    said = json.loads(store.compare_set(key, "", json.dumps(given)).decode())
    if not isinstance(said, dict):
        raise ValueError("these are no settings")
    return {name: value for name, value in control.checked(said).items() if name in control.POLICY}


def _policy(settings):
    return [getattr(settings, key.replace("-", "_")) for key in control.POLICY]


def machine(settings: Config) -> PolicyMachine:
    """The policy as these settings say, with nothing counted yet."""
    return _native.PolicyMachine(
        settings.on_alarm,
        settings.max_skips,
        settings.max_bad,
        settings.max_bad_share,
        settings.then,
        settings.cool_down,
    )
