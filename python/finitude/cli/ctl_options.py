"""The options of `finitude ctl`; in a file without imports, so that completion stays fast."""

OPTIONS = ("--quiet",)
HELP = """usage: finitude ctl [RUN] [KEY=VALUE...] [-q]
Changes settings of a run while it trains; of the newest run where none is
named. Without KEY=VALUE it prints what was changed so far. A key is an option
of `finitude run` without its dashes:

  on-alarm, then, max-skips, max-bad, max-bad-share, cool-down
                    hold from the next alarm on, which they decide; what was
                    counted of bad steps starts at 0
  warnings          from the next warning on; not in a run with --warnings off
  dump, dump-steps, dump-only
                    from the next step on, in a run with --dump (--dump off:
                    nothing is dumped before this command asks for it)

An empty VALUE: as the run was started. They are in control.toml of the run
folder.

  -q, --quiet       no notes on stderr, only failures

Exit codes: 0 done, 2 usage, 3 there is no such run, 4 it does not run any more,
was started without what the key needs, or the file cannot be written.
"""
