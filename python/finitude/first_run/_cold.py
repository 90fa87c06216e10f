"""Called by the engine on rare events only. A failure here must never reach the user's program: it turns us off. A step that was found
to be bad by then is bad all the same: what its policy says is done, without an explanation.
"""

import sys
import traceback

from .. import _native
from ..errors import NonFiniteError, Reached
from ..program import discover, quiet, rehearsal

session = None
_standing = discover.Standing()
after_step = _native.check_after_step  # the hook that looks at what a step wrote: one object, see compat.pass_over


def _fail(where):
    if rehearsal.is_under_way():
        rehearsal.end(rehearsal.UNKNOWN)   # the process itself is to meet it
    _native.set_on(False)
    _native.set_tape_level(0)
    quiet.let_go()
    line = traceback.format_exc().strip().splitlines()[-1]
    sys.stderr.write(f"finitude: switched off after an internal failure in {where} ({line}). Training goes on unwatched.\n")
    if session is not None:
        session.failed(f"internal failure in {where}: {line}")
        if session.debug:
            traceback.print_exc()


def _unexplained(alarm):
    from . import ends

    try:
        return ends.gave_up(session, alarm)
    except NonFiniteError as e:
        raise e.with_traceback(None)
    except Exception as e:      # not even that
        if alarm.get("harmless") or session.config.on_alarm == "warn":
            return None
        raise NonFiniteError(f"step {alarm.get('step')}: {alarm.get('text')}", report=alarm) from e


def _guard(name):
    def call(*args):
        if session is None:
            return None
        try:
            if name in ("on_window", "on_scaler_step"):
                rehearsal.came_back(*args)
            if name == "on_window":
                session.deciding = None
            with _standing:
                return getattr(session, name)(*args)
        except NonFiniteError as e:
            raise e.with_traceback(None)  # the user's traceback ends at optimizer.step, not in our decisions
        except (KeyboardInterrupt, SystemExit, Reached):
            raise
        except BaseException:
            alarm = session.under_way() if name == "on_window" else None
            _fail(name)
            return None if alarm is None else _unexplained(alarm)

    call.__name__ = name
    return call


on_backward = _guard("on_backward")
first_seen = _guard("first_seen")
on_window = _guard("on_window")
on_scaler_skip = _guard("on_scaler_skip")
on_written = _guard("on_written")
on_kept = _guard("on_kept")
on_created = _guard("on_created")
on_stream_met = _guard("on_stream_met")
on_searched = _guard("on_searched")
leave_out = _guard("leave_out")
on_armed = _guard("on_armed")
on_unit_raised = _guard("on_unit_raised")
on_backward_raised = _guard("on_backward_raised")
on_scaler_step = _guard("on_scaler_step")
on_late = _guard("on_late")
on_hand_begin = _guard("on_hand_begin")
on_hand_end = _guard("on_hand_end")
on_left_bad = _guard("on_left_bad")
on_bad_backward = _guard("on_bad_backward")
on_dropped = _guard("on_dropped")


def on_closure(optimizer, args, kwargs):
    result = _guard("on_closure")(optimizer, args, kwargs)
    return result if isinstance(result, tuple) else None
