"""The options of `finitude rows`; in a file without imports, so that completion stays fast."""

OPTIONS = ("--step", "--skip-list", "--json", "--quiet")
FLAGS = ("--json", "--quiet")
HELP = """usage: finitude rows [RUN] [--step N] [--skip-list FILE] [--json] [-q]
Prints the rows of the data set (their indices, as the sampler gave them) of
each step with an alarm or a spike, and the rows that these steps share, with
how much oftener they are in them than in other steps; of the newest run where
none is named. RUN may be running.

  --step N          all rows of step N instead, for each micro-batch with data
                    set, epoch and worker
  --skip-list FILE  write the rows that are to be skipped, for --skip-rows of
                    `finitude run` and for finitude.skip_rows: those that the
                    alarms name; of other bad steps the rows that all of them
                    share, or all rows where they share none. With --step all
                    rows of that step
  --json            the same as one JSON document
  -q, --quiet       no notes on stderr, only failures

Exit codes: 0 done, 2 usage, 3 unreadable or corrupt, or without rows,
4 FILE cannot be written.
"""
