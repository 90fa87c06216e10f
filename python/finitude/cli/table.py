"""The words of the command line, their options and what `--help` says of them."""

WORDS = {
    "run": "run a training program watched",
    "report": "show a report: what went wrong, where it was born, why",
    "replay": "compute a captured step again and compare every bit",
    "diff": "say where two steps part, or how two checkpoints differ",
    "doctor": "look for known mistakes, before a run or in what it left",
    "selftest": "put a NaN into your own program and see whether it is found",
    "pack": "put a capsule into one file",
    "unpack": "make the folder of a packed capsule again",
    "rows": "show the data-set rows of bad steps, and write a skip list",
    "scan": "find NaN, Inf and impossible values in checkpoints",
    "dump": "print every op of a recorded step as JSON lines",
    "list": "list the runs, also running and killed ones",
    "policy": "say what other policies would have done in a run",
    "live": "show a run in the browser while it trains",
    "export": "write the series of a run for another tool",
    "ctl": "change settings of a run while it trains",
    "mcp": "serve runs and capsules to an agent (Model Context Protocol)",
    "completion": "print the completion of a shell: bash, zsh or fish",
}

TEACHING = """Finitude, a flight recorder for PyTorch training. It stops a step that goes NaN
or Inf before the optimizer applies it, and says where the bad value was born.

  finitude run train.py        your training as it is, watched
  finitude list                the runs so far, also running and killed ones
  finitude report              what the newest run found: birth, cause and fix
  finitude replay              its newest bad step again, bit by bit
  finitude doctor train.py     what would go wrong, before it does
  finitude selftest train.py   is a NaN in your own program found where it is?

finitude --help has every command and option; so has `--help` after each word.
"""

HELP = """usage: finitude run [options] script.py [args]
       finitude run [options] -m module [args]
       finitude run [options] torchrun|accelerate|python|... [args]
       finitude list [DIR]
       finitude report [FILE|RUN|CAPSULE] [--json] [--html OUT] [--for-agent]
       finitude replay [CAPSULE] [options]
       finitude diff [A B] [options]
       finitude dump [FILE|RUN|CAPSULE]
       finitude scan FILE|DIR...
       finitude pack [CAPSULE [FILE]]
       finitude unpack FILE [FOLDER] [--max-mb N]
       finitude doctor [options] script.py [args]
       finitude doctor [options] [RUN|CAPSULE|LOG]
       finitude selftest [options] script.py [args]
       finitude policy [RUN] [--on-alarm P] [--then P,...] [--max-skips N] ...
       finitude live [RUN|DIR] [--port N]
       finitude export [RUN] --to FORMAT [-o PATH]
       finitude rows [RUN] [--step N] [--skip-list FILE]
       finitude ctl [RUN] [KEY=VALUE...]
       finitude mcp [--root DIR]
       finitude completion [bash|zsh|fish]

A flight recorder for PyTorch training. `run` watches an ordinary script; when a
step goes NaN or Inf it is stopped before the optimizer applies it, run a second
time under a full trace, and explained: the operation, source line and module
where the bad value was born, and why. Every Python process that the program
starts is watched as well if it trains; their reports are merged into one.

Where no path is given, `report` and `doctor` take the newest run of
finitude-runs (or of the folder that FINITUDE_RUNS names), `replay` and `pack`
its newest capsule, `dump` and `diff` the newest recordings, `export`, `rows`
and `ctl` its newest run, and say which. `live` shows all runs of that folder.

options of list, report, dump, diff, scan, rows, policy, replay, doctor and
selftest:
  --json          the outcome as JSON (`list`: one array; `dump` prints JSON
                  lines anyway)
  -q, --quiet     no notes on stderr, only failures. `replay`, `diff`, `scan`,
                  `doctor` and `selftest` print nothing else either: the exit
                  code is the answer. `list`: only the paths. `pack`, `export`,
                  `ctl` and `live` have it, too
  `finitude WORD --help` shows all options of a word.

options of run:
  --on-alarm stop|skip|warn|raise|rollback   what to do with a bad step (stop)
        stop      explain it, then raise finitude.NonFiniteError out of
                  optimizer.step
        skip      explain it, skip the step and continue; stop after
                  --max-skips in a row
        warn      explain it and apply the step
        raise     raise at once, explain nothing
        rollback  as skip; undo a step that the optimizer itself made bad; with
                  --rollback-every go back to a good copy of the training
  --level gate|tape|trace   what is recorded in healthy steps. gate: nothing
                  but the check; tape: every op without its values, so that a
                  bad loss or gradient is explained without running the
                  program's code again; trace: every op (gate)
  --tape-every N  with --level gate: record one healthy step in N, as --level
                  tape does, and try its operators first on a bad step; where
                  its bits do not come out, the step is run again as without
                  (0: none)
  --replicas-every N   every N steps compare the bits of parameters that ranks
                  should have in common (0, none; docs/distributed.md)
  --signals-together S   SIGTERM and SIGUSR1 reach all ranks in one step, or
                  after S seconds as they come (0: at once; docs/distributed.md)
  --verify every=N   compute one healthy step in N twice, and name the first
                  operation whose bits differ (none; docs/verify.md)
  --guard-memory  explain a bad step by a second process, with guard zones
                  around the memory of CPU tensors (docs/verify.md)
  --report FILE   the report as JSON, written with each alarm, and at the end
                  always
  --runs DIR      where reports go (finitude-runs)
  --max-skips N   bad steps in a row before `skip` stops (10)
  --max-bad N     bad steps in all before any policy stops (0: no limit)
  --max-bad-share P[/W]   share P of the last W steps (100) that may be bad
                  before any policy stops, e.g. 0.05/200 (no limit)
  --then POLICY,...   after `skip` or `rollback`, where --max-skips in a row
                  were not enough: skip, lower-rate (skip, and lower the
                  learning rate), rollback, stop, raise (none: stop)
  --cool-down N   good steps after which --on-alarm holds again (100)
  --undo-mb N     memory for copies, in MB: undo steps that the optimizer
                  itself ruins, and always go back over another optimizer's
                  step in place (0: only where copies are cheap)
  --rollback-every N   with --on-alarm rollback: copy the training (weights,
                  optimizer, scheduler, scaler, generators) after every N steps,
                  and go back to the newest good copy at an alarm (0: no copies)
  --rollback-mb N   host memory for two of these copies, in MB (0: a quarter of
                  what is free)
  --rollback-lr F   the learning rate is F times what it was, each time that
                  training goes back (1)
  --rollback-skip-rows   from the next epoch on a DataLoader with an index
                  sampler draws the rows no more that a step had which training
                  went back from
  --lower-rate-factor F   the policy `lower-rate` of --then makes the learning
                  rate F times what it was (0.5)
  --resume CMD    after a stop by an alarm run CMD, watched with the same
                  options; {checkpoint} in it is the newest good checkpoint of
                  the run, {samples} the samples that the alarm names, with
                  commas, {rows} a skip list of the rows of its bad steps:
                  --resume "train.py --resume {checkpoint}"
  --resume-times N   how often at most (3)
  --resume-skip-rows   run CMD with --skip-rows and that list
  --skip-rows FILE   rows that no DataLoader with an index sampler draws: a skip
                  list of `finitude rows --skip-list` (docs/rows.md)
  --restart-args ARGS   added to the program's arguments where it is started
                  again to explain a step, e.g. "--resume {newest:ckpt/*.pt}":
                  from the newest file that matches instead of from its start
  --capsules N    capsules that a run keeps, the newest ones; 0: none are
                  written (8)
  --capsule-max MB   a step that reads more than that gets none (2048)
  --capsule-of-step N   step N of the first optimizer leaves a capsule if it is
                  healthy, to be computed again in other ways (0: none;
                  docs/capsules.md)
  --experiments SECONDS   how long at most the fix and other changes are tried
                  on the bad step, and no longer than 20 times that step (2
                  seconds for small ones); 0: not at all (60)
  --stream-gradients auto|on|off   read gradients on a GPU while backward still
                  makes others (auto: where that hides anything: 256 MB of them
                  and more, and one process)
  --warnings all|off|NAME,...   what to warn of while values are still finite:
                  growth, spike, outlier, vanishing, scale, dead, clipping,
                  norm, no-learning, headroom, vanishing-depth,
                  exploding-depth, logits, attention, dropped (all;
                  docs/warnings.md)
  --grad-warn N   warn where the 2-norm of all gradients is above N (0: never)
  --checkpoints warn|refuse|quarantine|off   what to do where a checkpoint that
                  the program writes holds NaN, Inf or an impossible value.
                  refuse: raise NonFiniteError before the file is touched;
                  quarantine: write it into a folder `quarantine` beside, also
                  one after growth began, and keep the last good one (warn)
  --on-event CMD|URL   start CMD at each warning, alarm, checkpoint and other
                  event, with the event as JSON on its standard input, or send
                  that to an address (http, https); the training does not wait
                  for it (docs/live.md)
  --dump statistics|checksums|tensors   write to dumps/ of the run folder,
                  for chosen steps: statistics of all that each operator reads
                  and writes; or checksums or values of what each module takes
                  and returns, and of gradients; +operators: of both; +stacks:
                  with all frames of the program (none; docs/dump.md)
  --dump-steps STEP,...   which steps: 10, 10-20, every=N, next=N (every=100)
  --dump-only KEY=VALUE,...   what of them: module=PATTERN, op=PATTERN,
                  scope=FIRST..LAST (modules, as they are called),
                  phase=forward|backward|optimizer, side=inputs|outputs,
                  rank=N, micro-batch=N, rows=FIRST:END (of what modules take
                  and return) (all)
  --dump-mb N     all dumps of a process in MB; 0: no limit (1024)
  --dump-control FILE   a TOML file with dump, steps and only; it is read again
                  when it changes while the training runs
  --golden DUMP|RUN   dump the steps that were dumped there, compare each while
                  the training runs, and say where the first one differs
                  (docs/dump.md)
  --record-env NAME,...   further variables of the environment that run.json
                  records
  --seed N        seed Python's random, numpy and torch with N before the
                  program begins, in each of its processes (finitude.seed_all)
  --redact        reports, capsules and their description without values,
                  sources and environment
  -q, --quiet     nothing on stderr but alarms and failures: no warnings, and no
                  closing line where all went well
  --rules FILE    rules of your own for the cause of an alarm, a Python file
                  (docs/recipes/add-a-rule.md); may be given several times
  --config FILE   the same keys as a TOML file ([tool.finitude] of
                  pyproject.toml is read too)

Each option is also an environment variable, e.g. FINITUDE_ON_ALARM=skip. Exit
code: the script's own.
"""

COMPLETION_HELP = """usage: finitude completion [bash|zsh|fish]
Prints the completion of that shell (bash). To use it:
  bash   eval "$(finitude completion bash)"     in ~/.bashrc
  zsh    eval "$(finitude completion zsh)"      in ~/.zshrc, after compinit
  fish   finitude completion fish > ~/.config/fish/completions/finitude.fish
"""

OPTIONS = (
    "--on-alarm",
    "--level",
    "--tape-every",
    "--replicas-every",
    "--signals-together",
    "--verify",
    "--guard-memory",
    "--report",
    "--runs",
    "--max-skips",
    "--max-bad",
    "--max-bad-share",
    "--then",
    "--cool-down",
    "--undo-mb",
    "--rollback-every",
    "--rollback-mb",
    "--rollback-lr",
    "--rollback-skip-rows",
    "--lower-rate-factor",
    "--resume",
    "--resume-times",
    "--resume-skip-rows",
    "--skip-rows",
    "--restart-args",
    "--capsules",
    "--capsule-max",
    "--capsule-of-step",
    "--experiments",
    "--stream-gradients",
    "--warnings",
    "--grad-warn",
    "--checkpoints",
    "--on-event",
    "--dump",
    "--dump-steps",
    "--dump-only",
    "--dump-mb",
    "--dump-control",
    "--golden",
    "--record-env",
    "--seed",
    "--redact",
    "--quiet",
    "--rules",
    "--config",
)
FLAGS = ("--redact", "--quiet", "--guard-memory", "--resume-skip-rows", "--rollback-skip-rows")
REPLAY_OPTIONS = (
    "--threads",
    "--allow",
    "--library",
    "--import",
    "--times",
    "--deterministic",
    "--unfused",
    "--dtype",
    "--device",
    "--stress",
    "--perturb",
    "--at",
    "--report",
    "--check",
    "--step-through",
    "--stop-at",
    "--save-tensors",
    "--script",
    "--break",
    "--with",
    "--against",
    "--json",
    "--quiet",
    "--timeout",
)
QUIET = ("-q", "--quiet")
DIFF_OPTIONS = ("--threads", "--allow", "--library", "--import", "--memory-mb")  # each with a value
DIFF_FLAGS = ("--json", "--quiet", "--no-colour")
REPLAY_FLAGS = (
    "--deterministic",
    "--unfused",
    "--stress",
    "--report",
    "--check",
    "--step-through",
    "--json",
    *QUIET,
)
