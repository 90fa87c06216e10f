"""What looks like a secret in a command line, an environment or a line of a program is not written down: its value is
masked, its name stays."""

from __future__ import annotations

import re
import shlex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MASK = "***"
# In a name: anywhere; as its last word.
_SECRET = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "cred",
    "creds",
    "credential",
    "credentials",
    "apikey",
    "authorization",
)
_LAST = ("key", "token", "tok", "auth", "bearer", "pat", "pw")
_SHORT = re.compile(r"-?[0-9.]{1,6}$|(true|false|none|null)$", re.IGNORECASE)  # no token is
_OF_URL = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@\"']{0,80}:)(?!\d{1,5}/)[^\s\"']{1,200}@"
)  # to the last @: a password may hold one
_USER_OF_URL = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)(?=[^\s/:@\"']{0,80}\d)[^\s/:@\"']{8,200}@"
)  # a token in place of a user
_HOOK = "--on-event"  # its address holds a token in its path
_TOKENS = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-|AKIA|ya29\.)[A-Za-z0-9_.-]{10,}")
# The header, to its end: a scheme and what follows it.
_HEADER = re.compile(
    r"(\bAuthorization\\?[\"']?\s{0,8}[=:,]\s{0,8}[rbfuRBFU]{0,2}\\?[\"']?)[^\"'\n\\]{1,2000}", re.IGNORECASE
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,8}[A-Za-z0-9_.+/=-]{6,}")
_QUOTED = r"(?P<quote>\\?(?:\"\"\"|\'\'\'|[\"']))(?P<value>(?:\\.|(?!(?P=quote)).)*)(?:(?P=quote)|$)"
_NAME = r"(?<![A-Za-z0-9_])(?P<name>[A-Za-z_][\w.-]{0,80})"
# NAME=VALUE, {"NAME": VALUE}
_NAMED = re.compile(_NAME + r"(?P<is>(?:\\?[\"'])?\s{0,8}[=:]\s{0,8})(?:" + _QUOTED + r"|(?P<bare>[^\s\"',;&}]+))")
# NAME = "...", NAME != "...", {"NAME": "..."}, x["NAME"] = "...", f("NAME", "..."), NAME: str = "...",
# f("--NAME", default="...")
_NAMED_IN_SOURCE = re.compile(
    _NAME + r"(?P<is>[\"']?[\])]?\s{0,8}(?::\s{0,8}[\w.\[\]| "
    r"]{1,40}=|[=:,]|==|!=)\s{0,8}(?:(?:[^\"']|\"[^\"]*\"|'[^']*'){0,120}?\bdefault\s*=\s*)?[rbfuRBFU]{0,2})" + _QUOTED
)
# NAME = ... or "...", NAME = ... else "..."
_OTHERWISE = re.compile(_NAME + r"(?P<is>[\"']?\]?\s{0,8}=(?!=).{0,200}?\b(?:or|else)\s{1,8}[rbfuRBFU]{0,2})" + _QUOTED)
# In a text: "...?NAME=VALUE&...", "... NAME=VALUE ..."; not what a format puts there
_NAMED_IN_TEXT = re.compile(_NAME + r"(?P<is>=)(?P<quote>)(?P<value>(?![{%])[^\s\"'&;,{}]+)")

# NAME=("...", "..."), "NAME": ["..."], NAME=Kind("...", "...")
_LISTED_IN_SOURCE = re.compile(
    _NAME + r"(?P<is>[\"']?[\])]?\s{0,8}[=:]\s{0,8}[\w.]{0,80}[\[(])(?P<inside>[^\[\](){}]{0,400})"
)
_TEXT = re.compile(_QUOTED)


def is_secret(name: str) -> bool:
    """Does an option, a variable or a key of that name hold one? --max-tokens, --tokenizer and --num-keys do not."""
    words = _words(name)
    return bool(words) and (words[-1] in _LAST or _is_surely(words))


def _words(name):
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _is_surely(words):
    return not set(words).isdisjoint(_SECRET) or "apikey" in "".join(words)


def _hides(name, value):
    if name == _HOOK:
        return value.lower().startswith(("http://", "https://"))
    if not is_secret(name) or not value:
        return False
    return not _SHORT.match(value) or not set(re.findall("[a-z]+", name.lower())).isdisjoint(_SECRET)


def _plain(text):
    for pattern, replacement in (
        (_OF_URL, rf"\g<1>{MASK}@"),
        (_USER_OF_URL, rf"\g<1>{MASK}@"),
        (_TOKENS, MASK),
        (_HEADER, rf"\g<1>{MASK}"),
        (_BEARER, rf"\g<1> {MASK}"),
    ):
        text = pattern.sub(replacement, text)
    return text


def _one(match):
    parts = match.groupdict()
    value, quote = parts.get("bare") or parts["value"] or "", parts["quote"] or ""
    return f"{parts['name']}{parts['is']}{quote}{MASK}{quote}" if _hides(parts["name"], value) else match[0]


def masked(text: str) -> str:
    """A text without the passwords of its URLs, without tokens of well-known forms and without the values of
    NAME=VALUE."""
    return _NAMED.sub(_one, _plain(text))


def masked_source(line: str) -> str:
    """A line of a program. Only a text that it gives to such a name can be a secret: another name is none. In a comment
    also a bare word, of a name that can be no other (a key may be one of attention)."""
    line = _LISTED_IN_SOURCE.sub(_each, _each_one(_NAMED_IN_SOURCE, _plain(line)))
    line = _TEXT.sub(lambda text: _NAMED_IN_TEXT.sub(_one, text[0]), _each_one(_OTHERWISE, line))
    code, mark, comment = line.partition("#")
    return code + mark + _NAMED.sub(_in_comment, comment)


def _each_one(pattern, line):
    """With each name looked at, also one in the value of another: f(x, "token", "...")."""
    shown, at = "", 0
    while (match := pattern.search(line, at)) is not None:
        masks = (text := _one(match)) != match[0]
        shown += line[at : match.start()] + (text if masks else match["name"])
        at = match.end() if masks else match.end("name")
    return shown + line[at:]


def _each(match):
    if not is_secret(match["name"]):
        return match[0]
    return match["name"] + match["is"] + _TEXT.sub(rf"\g<quote>{MASK}\g<quote>", match["inside"])


def _in_comment(match):
    return _one(match) if _is_surely(_words(match["name"])) else match[0]


def masked_value(name: str, value: Any) -> Any:
    """A setting of that name: a text, or a list of some; others as they are."""
    if isinstance(value, (tuple, list)):
        return [masked_value(name, item) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if _hides(name, value) else masked_words([value])[0]


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command line: also those that follow an option of such a name, up to the next option."""
    shown, hides, is_next = [], "", False
    for word in map(str, words):
        is_option = word.startswith("-") and not _SHORT.match(word)
        if hides and not is_option and (is_next or "=" not in word and "://" not in word):
            hides, is_next = hides if _hides(hides, word) else "", False  # a number, say: the option takes one word
            shown.append(MASK if hides else _word(word))
            continue
        name, eq, value = word.partition("=")
        is_hidden = eq and _hides(name.rpartition(".")[2] or name, value)
        shown.append(f"{name}={MASK}" if is_hidden else _word(word))
        hides = name if is_option and not eq and (is_secret(name) or name == _HOOK) else ""
        is_next = bool(hides)
    return shown


def _word(word):
    """One with spaces may be a command itself: `--on-event "notify --token ..."`, `sh -c "..."`."""
    word = masked(word)
    return masked_command(word) if " " in word else word


def masked_command(command: str) -> str:
    """A command line as one text, as it was written where nothing in it is masked."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quotation without end
        return masked(command)
    shown = masked_words(words)
    return command if shown == words else shlex.join(shown)


def hidden(document: Any) -> Any:
    """A document without those in the lines of the program that it shows."""
    if isinstance(document, dict):
        return {
            key: shown(value) if key in ("source", "diff") and isinstance(value, str) else hidden(value)
            for key, value in document.items()
        }
    return [hidden(value) for value in document] if isinstance(document, (list, tuple)) else document


def shown(lines: str) -> str:
    """Lines of a program without them."""
    return "\n".join(map(masked_source, lines.split("\n")))
