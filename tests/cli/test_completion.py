"""`finitude completion`: what each shell offers, asked of the shells that are installed here."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import helpers
from finitude.cli import completion
from finitude.cli.table import WORDS

# (command line before the cursor, words that are offered, words that are not)
CASES = [
    ("finitude ", list(WORDS), ["--json"]),
    ("finitude rep", ["report", "replay"], ["run"]),
    ("finitude report --", ["--html", "--json", "--quiet"], ["--threads"]),
    ("finitude list --", ["--json", "--quiet"], ["--html"]),
    ("finitude replay --", ["--threads", "--stop-at", "--check"], ["--on-alarm"]),
    ("finitude selftest --", ["--at-step", "--phase"], ["--on-alarm"]),
    ("finitude run --on-alarm ", ["stop", "skip", "warn", "raise", "rollback"], ["train.py"]),
    ("finitude replay --device ", ["cpu", "cuda"], ["train.py"]),
    ("finitude completion ", ["bash", "zsh", "fish"], ["train.py"]),
    ("finitude run tr", ["train.py"], ["stop"]),
]


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("completion")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.sh").write_text("")
    for shell in completion.SHELLS:
        got = helpers.finitude(tmp_path, "completion", shell)
        assert got.code == 0 and got.err == "", got.text()
        (tmp_path / f"completion.{shell}").write_text(got.out)
    return tmp_path


def check(asked, offered):
    line, wanted, unwanted = asked
    assert set(wanted) <= set(offered) and not set(unwanted) & set(offered), (line, offered)


def of_bash(folder, line):
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"source completion.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _finitude\n"
        'printf "%s\\n" "${COMPREPLY[@]}"; complete -p finitude'
    )
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == "" and "-F _finitude finitude" in done.stdout
    return done.stdout.splitlines()[:-1]


def of_fish(folder, line):
    script = f"source completion.fish; complete -C '{line}'"
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


@needs("bash")
@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked[0])
def test_bash(folder, asked):
    check(asked, of_bash(folder, asked[0]))


@needs("fish")
@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked[0])
def test_fish(folder, asked):
    check(asked, of_fish(folder, asked[0]))


class Zsh:
    """One on a terminal: its completion works nowhere else."""

    START = (
        "unsetopt zle_bracketed_paste; PROMPT='> '; LISTMAX=0; autoload -U compinit; compinit -u -D\n"
        "zstyle ':completion:*' list-prompt ''; zstyle ':completion:*' menu no; eval \"$(<completion.zsh)\"; bindkey "
        "'^I' list-choices; echo is-ready\n"
    )

    def __init__(self, folder):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb", COLUMNS="100", LINES="60", ZDOTDIR=str(folder))
            os.execvp("zsh", ["zsh", "-f", "-i"])
        self.pid = pid
        os.write(self.terminal, self.START.encode())
        self.read(until="\nis-ready")

    def read(self, until=None, quiet=0.7, limit=30):
        """What comes, up to a text or until nothing comes any more."""
        text, began = "", time.monotonic()
        while time.monotonic() - began < limit:
            if select.select([self.terminal], [], [], quiet)[0]:
                text += os.read(self.terminal, 65536).decode(errors="replace").replace("\r", "")
            elif until is None and text:
                break
            if until is not None and until in text:
                break
        return text

    def offered(self, line):
        self.read(quiet=0.3, limit=1)
        os.write(self.terminal, (line + "\t").encode())
        shown = self.read()
        os.write(self.terminal, b"\x15")  # clears the line
        return re.findall(r"[\w.-]+", shown.partition("\n")[2])

    def end(self):
        os.write(self.terminal, b"\x15exit\n")
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@needs("zsh")
def test_zsh(folder):
    zsh = Zsh(folder)
    try:
        for asked in CASES:
            check(asked, zsh.offered(asked[0]))
    finally:
        zsh.end()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_shell_can_read_the_text(folder, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", f"completion.{shell}"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_of_every_word_is_in_each(folder):
    for shell in completion.SHELLS:
        text = (folder / f"completion.{shell}").read_text()
        for word, options in completion.TREE.items():
            assert re.search(rf"\b{word}\b", text)
            for option in options:
                assert (option if shell != "fish" else f"-l {option[2:]}") in text, (shell, word, option)


def test_another_shell_is_an_error(tmp_path):
    for words in (["tcsh"], ["bash", "zsh"], ["--bogus"]):
        got = helpers.finitude(tmp_path, "completion", *words)
        assert (got.code, got.out) == (2, "") and "bash, zsh, fish" in got.err, got.text()
    assert helpers.finitude(tmp_path, "completion").out == helpers.finitude(tmp_path, "completion", "bash").out
