"""The options of `finitude live`; in a file without imports, so that completion stays fast."""

OPTIONS = ("--port", "--quiet")
HELP = """usage: finitude live [RUN|DIR] [--port N] [-q]
Serves a page that shows a run while it trains: loss, norms and learning rate
over all steps, a map of all parameters, warnings, alarms and checkpoints. Of a
folder of runs (finitude-runs, where none is named) it shows the newest and
those chosen beside it; a run that begins later appears by itself.

It listens on 127.0.0.1 only, and answers only who has the address it prints,
with the token in it. /metrics has the newest values for Prometheus (the token
as bearer, or ?token=). Ctrl-C ends it; the training does not notice.

  --port N            (any that is free)
  -q, --quiet         print nothing but the address

Exit codes: 0 it was ended, 2 usage, 3 nothing to show, 4 the port cannot be
opened.
"""
