"""The command line: `finitude run train.py`, and words that read what a run left behind."""

from __future__ import annotations

import os
import shlex
import signal
import sys

from ..base.option_words import near
from ..base.say import printable
from . import standard_streams, without_python
from .table import COMPLETION_HELP, FLAGS, HELP, OPTIONS, TEACHING, WORDS

EXIT_USAGE, EXIT_INPUT, EXIT_CANNOT = 2, 3, 4
_OWN_HELP = (
    "run",
    "doctor",
    "selftest",
    "completion",
    "live",
    "export",
    "rows",
    "ctl",
)  # shown without what answers the word


def _usage(text):
    sys.stderr.write(f"finitude: {text}\n(finitude --help shows the options)\n")
    return EXIT_USAGE


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code; `run` ends by SystemExit as the program does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["run"] and not {"-h", "--help"}.intersection(argv[1:2]):
        return _word(argv)  # standard output is the program's there
    try:
        with standard_streams.guarded(), standard_streams.interruptible(_clear):
            return _word(argv)
    except standard_streams.Unwritten as e:
        with standard_streams.guarded():
            sys.stderr.write(f"finitude: cannot write to standard output: {e}\n")
        return EXIT_CANNOT
    except KeyboardInterrupt:
        standard_streams.end_of(signal.SIGINT)
        raise
    except BrokenPipeError:
        if not standard_streams.nobody_reads():
            raise
        # Of SIGPIPE, which Python ignores, as any other tool: `finitude report CAPSULE | head` is no failure.
        standard_streams.end_of(signal.SIGPIPE)
        raise
    except OSError as e:  # a file of a run that may not be read, or that has gone meanwhile
        if os.environ.get("FINITUDE_DEBUG"):
            raise
        name = os.fsdecode(e.filename) if isinstance(e.filename, (str, bytes)) and e.filename else argv[0]
        with standard_streams.guarded():
            sys.stderr.write(f"finitude: {printable(name)}: {e.strerror or e}\n")
        return EXIT_INPUT


def _clear():
    """Removes what was unpacked for a word, where any was."""
    if pack := sys.modules.get("finitude.capsules.pack"):
        pack.clear()


def _word(argv):
    if not argv:
        sys.stdout.write(TEACHING)
        return EXIT_USAGE
    if argv[0] == "help" and argv[1:2] and argv[1] in WORDS:
        return _word([argv[1], "--help"])
    if argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP)
        return 0
    if argv[0] in ("-V", "--version", "version"):
        from .. import __version__

        sys.stdout.write(f"finitude {__version__}\n")
        return 0
    word, rest = argv[0], argv[1:]
    if word not in WORDS:
        if word.endswith(".py") or os.path.isfile(word):
            return _usage(f"unknown word {word!r}; to watch a script: finitude run {shlex.quote(word)}")
        return _usage(f"unknown word {word!r}{near(word, WORDS)}")
    if without_python.is_for_agent(argv):
        from ..agents import offline as short

        code, out, err = short.command(_paths_after_dashes(rest))
        sys.stdout.write(out)
        sys.stderr.write(err)
        return code
    if without_python.is_page(argv):
        from . import report_page

        return report_page.write(_paths_after_dashes(rest))
    if word in without_python.WORDS or without_python.is_answered(argv):
        from . import offline

        return offline.read(word, _paths_after_dashes(without_python.as_asked(argv)[1:]))
    if rest and rest[0] in without_python.HELP and word in _OWN_HELP:
        sys.stdout.write(_help(word))
        return 0
    if word == "run":
        return _run(rest)
    if word == "mcp":
        from ..agents import server

        return server.main(rest)
    if word not in ("doctor", "selftest"):
        rest = _paths_after_dashes(rest)
    if word == "completion":
        return _completion(rest)
    if word == "selftest":
        from ..selftest import command

        return command.command(rest)
    from . import offline

    return getattr(offline, word)(rest)


def _help(word):
    if word == "doctor":
        from ..doctor.options import HELP as text
    elif word == "selftest":
        from ..selftest.options import HELP as text
    elif word == "live":
        from ..live.options import HELP as text
    elif word == "export":
        from ..export.options import HELP as text
    elif word == "ctl":
        from .ctl_options import HELP as text
    elif word == "rows":
        from ..rows.options import HELP as text
    else:
        text = HELP if word == "run" else COMPLETION_HELP
    return text


def _completion(rest):
    from . import completion

    if len(rest) > 1 or any(shell not in completion.SHELLS for shell in rest):
        return _usage(f"completion takes the name of a shell, {', '.join(completion.SHELLS)}, not {' '.join(rest)!r}")
    sys.stdout.write(completion.SHELLS[rest[0] if rest else "bash"]())
    return 0


def _paths_after_dashes(rest):
    """The same words without `--`: what follows it is a path, also where it begins like an option."""
    if "--" not in rest:
        return rest
    at = rest.index("--")
    return rest[:at] + [os.path.join(os.curdir, word) if word.startswith("-") else word for word in rest[at + 1 :]]


def parse_run(rest):
    """(options, config file, is_module, target, arguments). Raises config.UsageError."""
    from ..base import config

    options, config_file, i = {}, None, 0
    while i < len(rest) and rest[i].startswith("-") and rest[i] != "-m":
        word, eq, value = rest[i].partition("=")
        word = "--quiet" if word == "-q" else word
        if rest[i] == "--":
            i += 1
            break
        if word not in OPTIONS:
            raise config.UsageError(f"unknown option {word}{near(word, OPTIONS)}")
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
        return options, config_file, True, rest[i + 1], rest[i + 2 :]
    if i >= len(rest):
        raise config.UsageError("run what? finitude run [options] script.py [args]")
    return options, config_file, False, rest[i], rest[i + 1 :]


def _skipped(path):
    """What a skip list says. Raises config.UsageError."""
    from ..base import config, skip_list

    try:
        return skip_list.read(path) if path else []
    except (OSError, skip_list.Unreadable) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise config.UsageError(f"--skip-rows: cannot read {path}: {why}") from None


def _rows_of_run(run):
    """Raises ValueError."""
    from ..rows import found

    try:
        return found.skip_list_of(run)
    except (OSError, found.NoRows) as e:
        raise ValueError(str(e)) from None


def _missing_ranks(settings):
    """Which ranks --dump-only names that a launcher around this process has not started; "" also where none did."""
    if not settings.dump and not settings.dump_control and not settings.golden:
        return ""
    from ..base import dump_plan
    from ..program import ranks

    size = ranks.known_size()
    return dump_plan.Plan(only=dump_plan.parse_only(settings.dump_only)).missing_ranks(size) if size else ""


def _run(rest):
    from ..base import config, family
    from ..launch import targets

    try:
        options, config_file, is_module, target, arguments = parse_run(rest)
        again, times = options.pop("resume", None), options.pop("resume_times", None)
        skips_rows = bool(options.pop("resume_skip_rows", 0))
        settings = config.load(options, config_file)
        skipped = _skipped(settings.skip_rows)
    except config.UsageError as e:
        return _usage(str(e))
    for line in config.misspelt() + config.at_odds(settings):
        sys.stderr.write(f"finitude: warning: {line}\n")
    given = len(rest) - len(arguments) - (2 if is_module else 1)
    if again is not None:
        from ..launch import resume

        try:
            wanted = resume.Wanted(again, times, resume.without(rest[:given], FLAGS), rest[given:], skips_rows)
        except config.UsageError as e:
            return _usage(str(e))
        resume.main(settings.runs, wanted, bool(settings.redact), _rows_of_run, skipped)
    # Where a watched program started us: this run is one of its own.
    family.stand_down()
    family.withdraw(os.environ)
    target = targets.resolve(target, arguments, is_module)
    command = [sys.executable, "-m", "finitude", "run", *rest]
    if target.kind != "command" and (missing := _missing_ranks(settings)):
        return _usage(missing)
    if target.kind == "command":
        from ..launch import supervise

        supervise.main(settings, target, command, given)
    if target.kind == "missing":
        sys.stderr.write(
            f"finitude: {target.name} is not installed here: no such program on PATH or beside {sys.executable}\n"
        )
        return EXIT_CANNOT
    from ..launch import run

    run.main(settings, target.kind == "module", target.name, target.arguments, command)
