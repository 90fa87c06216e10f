"""Every command that any text of ours prints exists, with its options; those that a report prints are run. So do the
commands, options and exit codes of docs/contract.md."""

import itertools
import pathlib
import re
import shlex

import helpers
from finitude.agents.options import OPTIONS as MCP
from finitude.base import config
from finitude.cli.completion import POLICY
from finitude.cli.ctl_options import OPTIONS as CTL
from finitude.cli.table import FLAGS, HELP, OPTIONS, REPLAY_OPTIONS, WORDS
from finitude.doctor.options import OPTIONS as DOCTOR
from finitude.export.options import OPTIONS as EXPORT
from finitude.live.options import OPTIONS as LIVE
from finitude.rows.options import OPTIONS as ROWS
from finitude.selftest.options import HELP as SELFTEST

ROOT = pathlib.Path(__file__).parents[2]
KNOWN = {
    "run": (*OPTIONS, "-m"),
    "replay": REPLAY_OPTIONS,
    "doctor": (*DOCTOR, "-m"),
    "unpack": ("--max-mb",),
    "selftest": ("-m", *re.findall("--[a-z-]+", SELFTEST)),
    "report": ("--html", "--json", "--for-agent"),
    "list": ("--json",),
    "scan": ("--json",),
    "policy": (*POLICY, "--json"),
    "rows": (*ROWS, "-q"),
    "ctl": CTL,
    "mcp": MCP,
    "live": LIVE,
    "export": (*EXPORT, "-o"),
    "diff": ("--json", "--threads", "--allow", "--library", "--import", "--memory-mb", "--map", "--noise", "--join"),
    "dump": ("--growth", "--json"),
}
QUIET = ("list", "report", "dump", "scan", "diff", "replay", "doctor", "selftest", "live", "export", "policy", "ctl")
OPTION = r"(?:--?[a-z][a-z-]*|[A-Z][A-Z.|_]*|\[[^\]]*\]|[\w./*]+\.py)"
COMMAND = re.compile(rf"(?<![\w./-])finitude ([a-z]+)((?:[ =]+{OPTION})*)")
# What follows the name in sentences that name no command; another one is added here.
NO_WORDS = {
    "again",
    "capsule",
    "did",
    "finds",
    "gets",
    "is",
    "knows",
    "needs",
    "package",
    "raises",
    "ranks",
    "recorded",
    "trace",
    "was",
    "witness",
}


def strings():
    """(file, text) of the string literals of the package and the engine; adjacent ones are one text."""
    for pattern in ("python/finitude/**/*.py", "src/**/*.cpp", "src/**/*.h", "include/**/*.h"):
        yield from _strings_in(path for path in ROOT.glob(pattern) if "_test.cpp" not in path.name)


def _strings_in(paths):
    for path in paths:
        text = path.read_text(encoding="utf-8")
        text = re.sub(r'"\s*\n\s*f?"', "", text)
        for literal in re.findall(r'"""(.*?)"""|R"\((.*?)\)"|"((?:[^"\\\n]|\\.)*)"', text, re.DOTALL):
            yield path.relative_to(ROOT), next(filter(None, literal), "")


def test_each_exists_with_its_options():
    found, wrong = set(), []
    for file, text in strings():
        for word, rest in COMMAND.findall(text):
            if word in NO_WORDS:
                continue
            found.add(word)
            options = [option.partition("=")[0] for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest)]
            if word not in WORDS:
                wrong.append(f"{file}: finitude {word}")
            known = *KNOWN.get(word, ()), "--help", "-h", *(("--quiet", "-q") if word in QUIET else ())
            wrong += [f"{file}: finitude {word} {option}" for option in options if option not in known]
    assert not wrong
    assert {"run", "replay", "report", "diff", "doctor", "unpack"} <= found


def test_a_path_in_one_is_quoted():
    """It may have blanks: each that is put in goes through shlex, or is a name of what did."""
    put_in = re.compile(rf"(?<![\w./-])finitude (?:{'|'.join(WORDS)})(?: [\w./-]+)* \{{([^{{}}]+)\}}")
    found = [(str(file), name) for file, text in strings() if file.suffix == ".py" for name in put_in.findall(text)]
    assert len(found) >= 4, found
    assert not [one for one in found if "shlex." not in one[1] and one != ("python/finitude/agents/brief.py", "shown")]


def test_the_help_names_each_word_and_option():
    assert all(f"finitude {word}" in HELP for word in WORDS)
    assert all(option in HELP for option in OPTIONS)


CONTRACT = (ROOT / "docs/contract.md").read_text(encoding="utf-8")


def _table(heading):
    """The rows of the first table below a heading of the contract, without its head."""
    lines = CONTRACT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_contract_lists_every_command_option_value_and_default():
    commands = [word for row in _table("Command line") for word in re.findall("`finitude ([a-z]+)", row[0])]
    assert sorted(commands) == sorted(WORDS)
    values = {option.strip("`"): cell for option, cell, _ in _table("Options of run")}
    assert sorted(values) == sorted(OPTIONS)
    choices = {"--on-alarm": config.ON_ALARM, "--level": config.LEVELS, "--stream-gradients": config.STREAM}
    for field in config.OPTIONS:
        option = "--" + field.name.replace("_", "-")
        given, default = re.fullmatch(r"(.*) \((.*)\)", values[option]).groups()
        shown = "off" if option in FLAGS else "none" if field.default == "" else str(field.default).removesuffix(".0")
        assert default.strip("`") == shown, option
        assert option not in choices or tuple(re.findall("[a-z]+", given)) == choices[option], option


def test_exit_codes_are_those_of_the_contract(tmp_path):
    by_code = {row[0]: re.findall("`([a-z]+)`", row[2]) for row in _table("Exit codes")}
    assert sorted(by_code) == ["0", "1", "2", "3", "4"]
    for word in WORDS:
        wrong = helpers.finitude(tmp_path, word, "--no-such-option")
        assert wrong.code == 2, (word, wrong.text())
    files = {"diff": ("a", "b"), "unpack": ("a.capsule.zip",), "export": ("a", "--to", "csv")}
    for word in by_code["3"]:
        unreadable = helpers.finitude(tmp_path, word, *files.get(word, ("a",)))
        assert unreadable.code == 3, (word, unreadable.text())


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    torch.log(model(torch.ones(2, 4)).abs() * (0.0 if i == 1 else 1.0)).mean().backward()
    opt.step()
"""


def test_what_a_report_prints_is_done(tmp_path):
    """Also of a run in a folder whose name a shell would take for more than one word, or for an option."""
    for runs in ("runs", "-odd", "odd runs"):
        got = helpers.run(tmp_path, SCRIPT, f"--runs={runs}")
        capsule = got.the_alarm()["capsule"]
        shown = helpers.finitude(tmp_path, "report", "--", str(pathlib.Path(capsule).parent)).out + got.err
        joined = re.sub(r"\n\s+", "", shown)  # lines end inside of paths
        printed = re.findall(r"finitude ?(replay|dump|diff|report) ?(?:-- ?'([^']*step-\d+)'|(/\S*?step-\d+))", joined)
        assert printed or " " in runs, shown
        commands = {f"finitude {word} -- '{quoted or plain}'" for word, quoted, plain in printed if " " not in runs}
        commands |= {f"finitude {word} -- '{capsule}'" for word in ("replay", "report", "dump")}
        commands |= {
            f"finitude diff -- '{capsule}' '{capsule}'",
            f"finitude pack -- '{capsule}' p{len(runs)}.zip",
            f"finitude list -- '{runs}'",
        }
        for command in commands:
            done = helpers.finitude(tmp_path, *shlex.split(command)[1:])
            assert done.code == 0, (command, done.text())
    words = ["replay", "--threads", "1", "--", str(tmp_path / capsule)]
    assert helpers.finitude(tmp_path, *words).code == 0
