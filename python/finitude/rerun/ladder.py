"""The ways to explain a bad step, in the order in which they are tried: what disturbs the program least comes first.

A further way is a line here: its `attempt` says itself for which steps it serves."""

from __future__ import annotations

from . import call_again, restart, rewind, tape, traced

TRACE = traced.WAY  # every operation was recorded as the step ran
TAPE = tape.WAY  # its operators were, and are issued again
CALL = call_again.WAY  # what the loop has called is called again
REWIND = rewind.WAY  # the program itself goes back to the start of the window
RESTART = restart.WAY  # the program is started again in a second process

ALL = (TRACE, TAPE, CALL, REWIND, RESTART)
GUARDED = (RESTART,)  # with --guard-memory: the program's own process gets no guard zones
IN_PLACE = (TRACE, TAPE, CALL, REWIND)
TOGETHER = (CALL, REWIND)  # for a rank that holds finite values, while another one looks for its birth
AFTERWARDS = (TRACE, TAPE, RESTART)  # for a step that the program has left behind
