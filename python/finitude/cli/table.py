"""The words of the command line, their options and what `--help` says of them."""

WORDS = {
    "run": "run a training program watched",
    "report": "show a report again: finitude report FILE|RUN|CAPSULE [--html OUT] [--json]",
    "replay": "compute a captured step again and compare every bit: finitude replay CAPSULE [options]",
    "diff": "say where two captured or traced steps part: finitude diff A B [--json] [--threads N] "
    "[--allow NAMESPACE] [--library FILE.so] [--import MODULE] [--memory-mb N]",
    "doctor": "look for what goes wrong, in a script before it runs or in what a run left: finitude "
    "doctor SCRIPT|RUN|CAPSULE",
    "selftest": "put a NaN into your own program and see whether it is found there: finitude "
    "selftest [options] script.py [args]",
    "pack": "put a capsule into one file: finitude pack CAPSULE [FILE]",
    "unpack": "make the folder of a packed capsule again: finitude unpack FILE [FOLDER] [--max-mb N]",
    "dump": "print every op of a traced report as JSON lines: finitude dump FILE",
    "list": "list the runs of a directory, also running and killed ones: finitude list [DIR]",
    "mcp": "serve runs and capsules to an agent (Model Context Protocol): finitude mcp [--root DIR]",
    "completion": "print shell completion: finitude completion bash",
}

HELP = """usage: finitude run [options] script.py [args]
       finitude run [options] -m module [args]
       finitude run [options] torchrun|accelerate|python|... [args]
       finitude report FILE|RUN|CAPSULE    finitude replay CAPSULE    finitude diff A B
       finitude pack CAPSULE    finitude unpack FILE    finitude dump FILE    finitude list [DIR]
       finitude doctor [options] script.py [args]    finitude doctor RUN|CAPSULE
       finitude selftest [options] script.py [args]    finitude mcp [--root DIR]

A flight recorder for PyTorch training. `run` watches an ordinary script; when a step goes NaN or Inf it is stopped
before the optimizer applies it, run a second time under a full trace, and explained: the operation, source line and
module where the bad value was born, and why. Every Python process that the program starts is watched as well if it
trains; their reports are merged into one.

options of run:
  --on-alarm stop|skip|warn|raise|rollback   what to do with a bad step (stop)
        stop   explain it, then raise finitude.NonFiniteError out of optimizer.step
        skip   explain it, leave the step out and go on; stop after --max-skips in a row
        warn   explain it and apply the step        raise  raise at once, explain nothing
  --level gate|tape|trace   what is recorded in healthy steps (gate: nothing but the check; tape: every op without
                            its values, so that a bad step is explained without running the program's code again;
                            trace: every op)
  --tape-every N            with --level gate: record one healthy step in N, as --level tape does, and try its operators
                            first on a bad step; where its bits do not come out, the step is run again as without
                            (0: none)
  --report FILE             the report as JSON, written with each alarm, and at the end always
  --runs DIR                where reports go (finitude-runs)
  --max-skips N             bad steps in a row before `skip` stops (10)
  --undo-mb N               memory for copies, in MB: undo steps that the optimizer itself ruins, and always go back
                            over another optimizer's step in place (0: only where copies are cheap)
  --restart-args ARGS       added to the program's arguments where it is started again to explain a step, e.g.
                            "--resume {newest:ckpt/*.pt}": from the newest file that matches instead of from its start
  --capsules N              capsules that a run keeps, the newest ones; 0: none are written (8)
  --capsule-max MB          a step that reads more than that gets none (2048)
  --experiments SECONDS     how long at most the fix and other changes are tried on the bad step, and no longer than 20
                            times that step (2 seconds for small ones); 0: not at all (60)
  --stream-gradients auto|on|off   read gradients on a GPU while backward still makes others (auto: where that hides
                            anything: 256 MB of them and more, and one process)
  --redact                  reports, capsules and their description without values, sources and environment
  --rules FILE              rules of your own for the cause of an alarm, a Python file (docs/recipes/add-a-rule.md);
                            may be given several times
  --config FILE             the same keys as a TOML file ([tool.finitude] of pyproject.toml is read too)

Each option is also an environment variable, e.g. FINITUDE_ON_ALARM=skip. Exit code: the script's own.
"""

OPTIONS = (
    "--on-alarm",
    "--level",
    "--tape-every",
    "--report",
    "--runs",
    "--max-skips",
    "--undo-mb",
    "--restart-args",
    "--capsules",
    "--capsule-max",
    "--experiments",
    "--stream-gradients",
    "--redact",
    "--rules",
    "--config",
)
FLAGS = ("--redact",)
REPLAY_OPTIONS = (
    "--threads",
    "--allow",
    "--library",
    "--import",
    "--times",
    "--deterministic",
    "--dtype",
    "--device",
    "--step-through",
    "--stop-at",
    "--save-tensors",
    "--script",
    "--break",
    "--with",
    "--against",
    "--json",
    "--timeout",
)
