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
        (["--bogus"], "unknown option --bogus"),
    ],
)
def test_wrong_words_are_named(rest, says):
    with pytest.raises(option_words.Wrong, match=says):
        option_words.Words(rest, VALUES, option_words.QUIET)
