"""What looks like a secret is in no file that a run leaves: passwords and tokens of a command line, of lines of the
program."""

import hypothesis
import pytest
import torch  # noqa: F401  its libraries
from hypothesis import strategies

import helpers
from finitude import _native
from finitude.base import plain_json, secrets

HIDDEN = [
    "--api-key",
    "abc123xyz",
    "--hf_token=tok-a-zzzz",
    "--password",
    "1234",
    "wandb.api_key=deadbeef",
    "postgres://u:hunter2@h/db",
    "--url=redis://:hunter3@h",
    "--dbPassword",
    "foo99bar",
    "--awsSecretAccessKey",
    "qqqq",
    "hf_abcdefghijklmnop",
    "KEY=zz99zz99",
    "--auth",
    "several",
    "wordsof",
    "--header",
    "Authorization: Bearer shortone",
    "--cred",
    "credit99",
]
VALUES = [
    "abc123xyz",
    "tok-a-zzzz",
    "1234",
    "deadbeef",
    "hunter2",
    "hunter3",
    "foo99bar",
    "qqqq",
    "hf_abcdefghijklmnop",
    "zz99zz99",
    "several",
    "wordsof",
    "shortone",
    "credit99",
]
KEPT = [
    "--max-tokens",
    "512",
    "--tokenizer",
    "gpt2",
    "--num-keys",
    "8",
    "--key-dim",
    "64",
    "--lr",
    "0.1",
    "--author",
    "me",
    "--monkey",
    "george",
    "--key",
    "5",
    "http://host:80/path",
    "--token",
    "--verbose",
    "-v",
]
SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    out = model(torch.ones(2, 4)).abs() * (0.0 if i == 1 else 1.0)
    (torch.log(out) if dict(token="s3cr3t-of-the-line") else out).mean().backward()
    opt.step()
"""


def test_words_of_a_command_line():
    shown = " ".join(secrets.masked_words(HIDDEN))
    assert not [value for value in VALUES if value in shown], shown
    assert all(
        name in shown for name in ("--api-key", "--hf_token=", "wandb.api_key=", "postgres://u:", "@h/db", "KEY=")
    )
    assert secrets.masked_words(KEPT) == KEPT


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('login(token="abc-def-ghi", user="me")', 'login(token="***", user="me")'),
        ("x = attend(query, key=value_of)", "x = attend(query, key=value_of)"),
        ('db = "mysql://root:pw@host/x"', 'db = "mysql://root:***@host/x"'),
        ("loss = torch.log(p)", "loss = torch.log(p)"),
        ('h = {"Authorization": f"Basic {made}", "n": 1}', 'h = {"Authorization": f"***", "n": 1}'),
        ('headers = {"token": "abc-def", "lr": "0.1"}', 'headers = {"token": "***", "lr": "0.1"}'),
        ('os.environ["HF_TOKEN"] = "abc-def"', 'os.environ["HF_TOKEN"] = "***"'),
        ("os.environ.setdefault('HF_TOKEN', 'abc-def')", "os.environ.setdefault('HF_TOKEN', '***')"),
        ('password = "two words"', 'password = "***"'),
        ('API_KEY: str = f"abc{x}"', 'API_KEY: str = f"***"'),
        ('secret = """abc', 'secret = """***"""'),
        (
            'p.add_argument("--token", type=str, default="abc-def")',
            'p.add_argument("--token", type=str, default="***")',
        ),
        ('x = table["token"] + other["lr"]', 'x = table["token"] + other["lr"]'),
        ('loss = f(key="k", value="v")', 'loss = f(key="***", value="v")'),
        ('u = "https://abcdef0123@host/x"', 'u = "https://***@host/x"'),
        ('ok = my_password != "abc-def"', 'ok = my_password != "***"'),
        ('if auth.get("password") == "abc": f()', 'if auth.get("password") == "***": f()'),
        ('get(u, auth=("me", "abc-def"))', 'get(u, auth=("***", "***"))'),
        ('get(u, auth=HTTPBasicAuth("me", "abc-def"), t=("a",))', 'get(u, auth=HTTPBasicAuth("***", "***"), t=("a",))'),
        ('conf = {"passwords": 1, "password": ["abc", "def"]}', 'conf = {"passwords": 1, "password": ["***", "***"]}'),
        ("x = f(y)  # password: abc-def of mine", "x = f(y)  # password: *** of mine"),
        ('get(f"https://h/{a}?n=1&api_key=abc-def")', 'get(f"https://h/{a}?n=1&api_key=***")'),
        ('get(f"https://h/{a}?api_key={made}")', 'get(f"https://h/{a}?api_key={made}")'),
        ('connect("host=h password=abc-def port=1")', 'connect("host=h password=*** port=1")'),
        ('setattr(cfg, "api_key", "abc-def")', 'setattr(cfg, "api_key", "***")'),
        ('token = cfg.get(x) or "abc-def"', 'token = cfg.get(x) or "***"'),
        ('self.pw = f(x) if x else "abc-def"', 'self.pw = f(x) if x else "***"'),
        ("key = self.k(x) or other", "key = self.k(x) or other"),
        ('add("--token", help="a token", default="abc-def")', 'add("--token", help="a token", default="***")'),
        ("x = f(y)  # key: what attention reads", "x = f(y)  # key: what attention reads"),
    ],
)
def test_lines_of_a_program(line, expected):
    assert secrets.masked_source(line) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ('{"api_key": "two words", "lr": 0.1}', '{"api_key": "***", "lr": 0.1}'),
        ("{'api_key': 'abc'}", "{'api_key': '***'}"),
        ("postgres://me:a/b@c@host/db", "postgres://me:***@host/db"),
        ("https://abcdef0123456789@github.com/me/x", "https://***@github.com/me/x"),
        ("https://reader@host/x", "https://reader@host/x"),
        ("http://host:8080/pkg@v1", "http://host:8080/pkg@v1"),
        ("notify --token abc-def --to me", "notify --token '***' --to me"),
        ("a sentence of some words", "a sentence of some words"),
    ],
)
def test_one_word_of_a_command_line(word, expected):
    assert secrets.masked_words([word]) == [expected]


def test_the_address_of_events_is_masked():
    address = "https://hooks.example.org/T0/abc"
    assert secrets.masked_words(["--on-event", address, "train.py"]) == ["--on-event", "***", "train.py"]
    assert secrets.masked_words([f"--on-event={address}"]) == ["--on-event=***"]
    assert secrets.masked_words(["--on-event", "python notify.py"]) == ["--on-event", "python notify.py"]


def test_the_command_of_events_is_masked():
    command = "notify --token abc-def"
    assert secrets.masked_words(["--on-event", command, "train.py"])[1:] == ["notify --token '***'", "train.py"]
    assert "abc-def" not in secrets.masked_words([f"--on-event={command}"])[0]


SETTINGS = """
import torch
class Own(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.param_groups[0].update(
            api_key="abc-of-key", place="https://u:abc-of-place@host/x", hosts=("hf_abc0123456789abc",), mode="abc-mode"
        )
model = torch.nn.Linear(4, 2)
opt = Own(model.parameters())
for i in range(3):
    opt.zero_grad()
    (model(torch.ones(2, 4)).sum() / (0 if i == 1 else 1)).backward()
    opt.step()
"""


@pytest.mark.parametrize("options", [[], ["--redact"]], ids=str)
def test_settings_of_an_optimizer(tmp_path, options):
    got = helpers.run(tmp_path, SETTINGS, "--on-alarm", "skip", *options)
    assert got.the_alarm()["capsule"], got.text()
    hidden = ["abc-of-key", "abc-of-place", "hf_abc0123456789abc", *(["abc-mode"] if options else [])]
    files = [path for path in (tmp_path / "finitude-runs").rglob("*") if path.is_file()]
    assert {"run.json", "capsule.json"} <= {path.name for path in files}
    for path in files:
        left = [value for value in hidden if value.encode() in path.read_bytes()]
        assert not left, (path, left)


def test_a_command_as_one_text():
    assert secrets.masked_command("curl --token abcdefg http://h | sh") == "curl --token '***' http://h '|' sh"
    assert secrets.masked_command("a | b") == "a | b"


def test_a_command_that_is_launched(tmp_path):
    helpers.write_script(tmp_path, SCRIPT)
    got = helpers.finitude(tmp_path, "run", "--report", "report.json", "sh", "-c", "exit 0", *HIDDEN)
    command = " ".join(got.report["command"])
    assert "***" in command and not [value for value in VALUES if value in command], command
    kept = helpers.finitude(tmp_path, "run", "--redact", "--report", "report.json", "sh", "-c", "exit 0", *HIDDEN)
    assert kept.report["command"] == []


def test_nothing_that_a_run_leaves_holds_one(tmp_path):
    got = helpers.run(tmp_path, SCRIPT, "--on-alarm", "skip", args=HIDDEN)
    alarm = got.the_alarm()
    assert alarm["births"][0]["op"] == "aten::log" and "***" in " ".join(got.report["command"])
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "train.py":
            data = path.read_bytes()
            left = [value for value in (*VALUES[:2], *VALUES[3:], "s3cr3t-of-the-line") if value.encode() in data]
            assert not left, (path, left)


TEXTS = strategies.text(strategies.characters(codec=None)) | strategies.just("token = 's3cr3t-of-the-line'\nx = 1")
LEAVES = TEXTS | strategies.floats() | strategies.integers() | strategies.booleans() | strategies.none()
KEYS = TEXTS | strategies.sampled_from(["source", "diff"]) | strategies.integers()


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    strategies.recursive(
        LEAVES,
        lambda inner: strategies.lists(inner) | strategies.tuples(inner) | strategies.dictionaries(KEYS, inner),
        max_leaves=20,
    )
)
def test_the_engine_masks_as_processes_without_one(document):
    """Of a report the engine makes a plain document, elsewhere Python does."""
    assert _native.plain(document, secrets.shown) == plain_json.safe(secrets.hidden(document))
    assert _native.plain(document) == plain_json.safe(document)


def test_surrogates_are_shown_by_either():
    for text in ("a\udc80b", "\ud800", "\udc80\ud800\udfff", "plain"):
        assert _native.plain({text: text}) == plain_json.safe({text: text})
        _native.plain(text).encode()
