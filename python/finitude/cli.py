"""The command line: `finitude run train.py`, and words that read what a run left behind."""

import difflib
import os
import sys

from . import config, family, targets

WORDS = {
    "run": "run a training program watched",
    "report": "show a report again: finitude report FILE|RUN|CAPSULE [--html OUT] [--json]",
    "replay": "compute a captured step again and compare every bit: finitude replay CAPSULE [options]",
    "diff": "say where two captured or traced steps part: finitude diff A B [--json] [--threads N] [--allow NAMESPACE] [--library FILE.so] [--import MODULE] [--memory-mb N]",
    "doctor": "look for what goes wrong, in a script before it runs or in what a run left: finitude doctor SCRIPT|RUN|CAPSULE",
    "selftest": "put a NaN into your own program and see whether it is found there: finitude selftest [options] script.py [args]",
    "pack": "put a capsule into one file: finitude pack CAPSULE [FILE]",
    "unpack": "make the folder of a packed capsule again: finitude unpack FILE [FOLDER] [--max-mb N]",
    "dump": "print every op of a traced report as JSON lines: finitude dump FILE",
    "list": "list the reports of a runs directory: finitude list [DIR]",
    "completion": "print shell completion: finitude completion bash",
}

HELP = """usage: finitude run [options] script.py [args]
       finitude run [options] -m module [args]
       finitude run [options] torchrun|accelerate|python|... [args]
       finitude report FILE|RUN|CAPSULE    finitude replay CAPSULE    finitude diff A B
       finitude pack CAPSULE    finitude unpack FILE    finitude dump FILE    finitude list [DIR]
       finitude doctor [options] script.py [args]    finitude doctor RUN|CAPSULE
       finitude selftest [options] script.py [args]

A flight recorder for PyTorch training. `run` watches an ordinary script; when a step goes NaN or Inf it is stopped
before the optimizer applies it, run a second time under a full trace, and explained: the operation, source line and
module where the bad value was born, and why. Every Python process that the program starts is watched as well if it
trains; their reports are merged into one.

options of run:
  --on-alarm stop|skip|warn|raise|rollback   what to do with a bad step (stop)
        stop   explain it, then raise finitude.NonFiniteError out of optimizer.step
        skip   explain it, leave the step out and go on; stop after --max-skips in a row
        warn   explain it and apply the step        raise  raise at once, explain nothing
  --level gate|tape|trace   what is recorded in healthy steps (gate: nothing but the check; tape: every op without its values,
                            so that a bad step is explained without running the program's code again; trace: every op)
  --tape-every N            with --level gate: record one healthy step in N, as --level tape does, and try its operators first on a
                            bad step; where its bits do not come out, the step is run again as without (0: none)
  --report FILE             the report as JSON, written at the end always
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
  --redact                  capsules and their description without values, sources and environment
  --rules FILE              rules of your own for the cause of an alarm, a Python file (docs/recipes/add-a-rule.md); may be
                            given several times
  --config FILE             the same keys as a TOML file ([tool.finitude] of pyproject.toml is read too)

Each option is also an environment variable, e.g. FINITUDE_ON_ALARM=skip. Exit code: the script's own.
"""

OPTIONS = ("--on-alarm", "--level", "--tape-every", "--report", "--runs", "--max-skips", "--undo-mb", "--restart-args", "--capsules", "--capsule-max",
           "--experiments", "--stream-gradients", "--redact", "--rules", "--config")
FLAGS = ("--redact",)
REPLAY_OPTIONS = ("--threads", "--allow", "--library", "--import", "--times", "--deterministic", "--dtype", "--device", "--step-through", "--stop-at", "--save-tensors",
                  "--script", "--break", "--with", "--json", "--timeout")
EXIT_USAGE, EXIT_CANNOT = 2, 4


def _usage(text):
    sys.stderr.write(f"finitude: {text}\n(finitude --help shows the options)\n")
    return EXIT_USAGE


def _near(word, words):
    close = difflib.get_close_matches(word, words, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def main(argv=None):
    """Returns the exit code; `run` ends by SystemExit as the program does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP)
        return 0 if argv else EXIT_USAGE
    if argv[0] in ("-V", "--version"):
        from . import __version__

        sys.stdout.write(f"finitude {__version__}\n")
        return 0
    word, rest = argv[0], argv[1:]
    if word not in WORDS:
        if word.endswith(".py") or os.path.isfile(word):
            return _usage(f"unknown word {word!r}; to watch a script: finitude run {word}")
        return _usage(f"unknown word {word!r}{_near(word, WORDS)}")
    if rest and rest[0] in ("-h", "--help") and word not in ("replay", "diff", "pack", "unpack", "selftest"):
        if word == "doctor":
            from .doctor.command import HELP as text
        else:
            text = HELP if word == "run" else f"finitude {word}: {WORDS[word]}\n"
        sys.stdout.write(text)
        return 0
    if word == "run":
        return _run(rest)
    if word in ("pack", "unpack"):
        from . import pack

        return pack.command(word, rest)
    if word == "selftest":
        from .selftest import command

        return command.command(rest)
    from . import offline

    return getattr(offline, word)(rest)


def parse_run(rest):
    """(options, config file, is_module, target, arguments). Raises config.UsageError."""
    options, config_file, i = {}, None, 0
    while i < len(rest) and rest[i].startswith("-") and rest[i] != "-m":
        word, eq, value = rest[i].partition("=")
        if rest[i] == "--":
            i += 1
            break
        if word not in OPTIONS:
            raise config.UsageError(f"unknown option {word}{_near(word, OPTIONS)}")
        if word in FLAGS and not eq:
            value = 1
        elif not eq:
            if i + 1 >= len(rest):
                raise config.UsageError(f"{word} needs a value")
            i += 1
            value = rest[i]
        if word == "--config":
            config_file = value
        elif word == "--rules":
            options["rules"] = os.pathsep.join(filter(None, (options.get("rules"), value)))
        else:
            options[word[2:].replace("-", "_")] = value
        i += 1
    if i < len(rest) and rest[i] == "-m":
        if i + 1 >= len(rest):
            raise config.UsageError("-m needs the name of a module")
        return options, config_file, True, rest[i + 1], rest[i + 2:]
    if i >= len(rest):
        raise config.UsageError("run what? finitude run [options] script.py [args]")
    return options, config_file, False, rest[i], rest[i + 1:]


def _run(rest):
    try:
        options, config_file, is_module, target, arguments = parse_run(rest)
        settings = config.load(options, config_file)
    except config.UsageError as e:
        return _usage(str(e))
    # Where a watched program started us: this run is one of its own.
    family.stand_down()
    family.withdraw(os.environ)
    target = targets.resolve(target, arguments, is_module)
    command = [sys.executable, "-m", "finitude", "run", *rest]
    if target.kind == "command":
        from . import supervise

        supervise.main(settings, target, command)
    if target.kind == "missing":
        sys.stderr.write(f"finitude: {target.name} is not installed here: no such program on PATH or beside {sys.executable}\n")
        return EXIT_CANNOT
    from . import run

    run.main(settings, target.kind == "module", target.name, target.arguments, command)
