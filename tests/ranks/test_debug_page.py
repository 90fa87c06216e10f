"""A page of torch.distributed.debug with what the ranks know of their run, where torch has such pages."""

import importlib.util
import json
import sys

import pytest

from finitude.integrations import torch_debug
from helpers import run

HAS_PAGES = importlib.util.find_spec("torch.distributed.debug") is not None
SERVED = """
import os, socket, sys, time, torch, types, urllib.request
import torch.distributed as dist
# What torch's pages import, and what comes with no torch.
sys.modules.setdefault("tabulate", types.SimpleNamespace(tabulate=lambda *a, **k: ""))
def post(url, timeout):
    url = url.replace(socket.gethostname(), "localhost")
    text = urllib.request.urlopen(url, data=b"", timeout=timeout).read().decode()
    return types.SimpleNamespace(status_code=200, text=text)
errors = types.SimpleNamespace(Timeout=TimeoutError, ConnectionError=ConnectionError)
requests = types.SimpleNamespace(post=post, exceptions=errors)
sys.modules.update(requests=requests, aiohttp=None)

def free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free()))
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(4):
    opt.zero_grad()
    (model(torch.ones(2, 4)).mean() * (float("nan") if i == 2 else 1)).backward()
    opt.step()
from torch.distributed.debug import start_debug_server, stop_debug_server
from finitude.integrations import torch_debug
port = free()
start_debug_server(port=port, handlers=torch_debug.handlers(), start_method="fork")
for _ in range(100):
    try:
        page = urllib.request.urlopen(f"http://localhost:{port}/finitude", timeout=5).read().decode()
        break
    except OSError:
        time.sleep(0.05)
print("page", "/finitude" in page, "the step was skipped" in page, "backward_calls" in page)
stop_debug_server()
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PAGES, reason="this torch has no torch.distributed.debug")
def test_the_page_shows_an_alarm(tmp_path):
    got = run(tmp_path, SERVED, "--on-alarm", "skip")
    assert "page True True True" in got.out and len(got.alarms) == 1, got.text()


def test_without_pages_there_are_those_of_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.debug._debug_handlers", None)
    assert torch_debug.handlers() is None


def test_an_answer_never_raises(monkeypatch):
    said = {}

    class Response:
        def set_content(self, content, kind):
            said["content"] = json.loads(content)

        def set_status(self, status):
            said["status"] = status

    torch_debug._answer(None, Response())
    assert said == {"content": {"watched": False}, "status": 200}
    monkeypatch.setattr(torch_debug, "state", lambda: 1 / 0)
    torch_debug._answer(None, Response())
    assert said == {"content": {"error": "ZeroDivisionError"}, "status": 500}
