"""The words of a command: options with values, flags, and paths."""

import pytest

from finitude.base import option_words

VALUES = {"--to": "--to", "-o": "--output", "--output": "--output"}


@pytest.mark.fast
def test_options_and_paths_in_any_order():
    words = option_words.Words(["a", "--to=x=y", "-q", "-o", "--odd", "b"], VALUES, option_words.QUIET)
    assert words.paths == ["a", "b"] and words.values == {"--to": "x=y", "--quiet": "on", "--output": "--odd"}
    assert words.has("--quiet") and not words.has("--port")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (["--to"], "--to needs a value"),
        (["--output="], "--output needs a value"),
        (["--xyz"], "unknown option --xyz$"),
        (["--outptu", "a"], "unknown option --outptu; did you mean --output?"),
        (["--quiet=1"], "--quiet takes no value"),
    ],
)
def test_wrong_words_are_named(rest, says):
    with pytest.raises(option_words.Wrong, match=says):
        option_words.Words(rest, VALUES, option_words.QUIET)


@pytest.mark.fast
def test_repeated_options_keep_their_order():
    words = option_words.Words(["--to", "a", "-q", "b", "--to=c"], VALUES, option_words.QUIET)
    assert words.given == [("--to", "a"), ("--quiet", "on"), ("--to", "c")] and words.values["--to"] == "c"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("rest", "paths"),
    [
        (["-q", "train.py", "--to", "-x"], ["train.py", "--to", "-x"]),
        (["-m", "-q"], ["-q"]),
        (["-q"], []),
    ],
)
def test_words_behind_a_command_are_its_own(rest, paths):
    flags = {**option_words.QUIET, "-m": "-m"}
    assert option_words.Words(rest, VALUES, flags, before_command=True).paths == paths
