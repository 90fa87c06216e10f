"""The timeline of a run in a real browser: alone, in a report, and live."""

import json
import re
import shutil
import threading
import time

import pages
import pytest

import helpers
import made_stores
from finitude.live import document, page, server

pytestmark = pytest.mark.slow

STEPS, PARAMETERS = 100_000, 500  # two series of each parameter
FIRST_PAINT, MOVE = 2000, 50  # milliseconds


@pytest.fixture(scope="module", autouse=True)
def built():
    pages.browser()
    found = pages.ROOT / "web" / "dist" / "timeline.html"
    if not found.is_file():
        pytest.skip("web/dist/timeline.html is not built: tools/web.sh does that")
    before, page.BUILT = page.BUILT, str(found)
    yield
    page.BUILT = before


def page_of(run):
    path = run.parent / "alone.html"
    path.write_text(page.filled(page.built(), "finitude", document.still(str(run))))
    return path


def made_run(tmp_path_factory, name, steps, parameters):
    folder = tmp_path_factory.mktemp("runs") / f"20260101-000000-{name}-1"
    return made_stores.run(folder, steps=steps, parameters=parameters)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return made_run(tmp_path_factory, "large", STEPS, PARAMETERS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return page_of(made_run(tmp_path_factory, "usual", 5000, 60))


@pytest.fixture
def live(tmp_path):
    folder = tmp_path / "runs"
    made_stores.run(folder / "20260101-000000-a-1", steps=1000, parameters=6)
    with server.Server(str(folder), 0) as one:
        threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True).start()
        yield folder, one
        one.is_ending.set()
        one.shutdown()


def test_nothing_fails_is_fetched_or_hidden(alone):
    ask = ["overflow", "coloured", "axe", "headings"]
    for scheme, width in (("light", 1280), ("dark", 360)):
        (found,) = pages.look({"file": alone, "scheme": scheme, "width": width, "ask": ask})
        assert (found["errors"], found["requests"], found["axe"]) == ([], [], [])
        assert found["overflow"] <= 0 and found["coloured"] == 1.0
        assert [text for _, text in found["headings"]] == ["20260101-000000-usual-1", "Parameters", "Events"]


@pytest.mark.timed
def test_charts_are_drawn_and_moved_in_time(large):
    """The best of three, of a page that has as much to show as any."""
    alone = page_of(large)
    found = pages.look(*[{"file": alone, "ask": ["paint", "moves"]}] * 3)
    print([(round(one["paint"]), round(max(one["moves"]))) for one in found])
    assert min(one["paint"] for one in found) < FIRST_PAINT
    assert min(sorted(one["moves"])[-2] for one in found) < MOVE
    for scheme, width in (("light", 1280), ("dark", 360)):
        (one,) = pages.look({"file": alone, "scheme": scheme, "width": width, "ask": ["overflow", "coloured"]})
        assert (one["errors"], one["requests"], one["coloured"]) == ([], [], 1.0) and one["overflow"] <= 0


def test_an_alarm_has_a_strip_of_its_onset(alone):
    (found,) = pages.look({"file": alone, "ask": ["text"]})
    assert "Alarm at step 900" in found["text"] and "largest weight of layers.1.weight" in found["text"]
    assert "good checkpoint at step 500, warning at step 640, onset at step 700, alarm at step 900" in found["text"]


def test_runs_are_compared_by_their_settings(tmp_path):
    shown = []
    for name, rate, is_bad in (("a", 0.1, True), ("b", 0.001, False)):
        folder = made_stores.store(tmp_path / name, steps=50, parameters=0)
        started = {"torch": "2.13.0", "optimizers": [{"class": "AdamW", "groups": [{"lr": rate}]}]}
        (folder / "run.json").write_text(json.dumps(started))
        if is_bad:
            made_stores.events(folder)
        shown.append(document.Follower(str(folder)).changes())
    path = tmp_path / "two.html"
    path.write_text(page.filled(page.built(), "two", {"live": False, "runs": shown, "maps": []}))
    (found,) = pages.look({"file": path, "ask": ["text", "axe", "overflow", "headings"]})
    assert (found["errors"], found["axe"]) == ([], []) and found["overflow"] <= 0
    assert ["H2", "What runs with an alarm share"] in found["headings"]
    assert "AdamW lr" in found["text"] and "0.001" in found["text"] and "2.13.0" not in found["text"]


def test_a_row_of_the_map_opens_its_parameter(alone):
    (found,) = pages.look({"file": alone, "ask": ["chosen", "shown"]})
    assert found["chosen"].startswith("layers.") and len(found["shown"]) == 5 + 2


@pytest.mark.parametrize("dtype", [None, "float16", "float32"])
def test_the_map_has_headroom_and_updates(tmp_path, dtype):
    folder = made_stores.run(tmp_path / "run", steps=3000, parameters=6, dtype=dtype)
    path = tmp_path / "alone.html"
    path.write_text(page.filled(page.built(), "finitude", document.still(str(folder))))
    (found,) = pages.look({"file": path, "ask": ["maps", "axe", "coloured"]})
    plain = ["Largest gradient", "Largest weight", "Gradient / weight"]
    both = ["Largest gradient", "Headroom of gradients", "Largest weight", "Gradient / weight", "Update / weight"]
    assert (found["errors"], found["axe"], list(found["maps"])) == ([], [], both if dtype else plain)
    assert found["coloured"] == 1.0
    if dtype:  # gradients are 0.2 to 1.2 times exp(-3): 2^-6.6 to 2^0.3
        most, least = (float(one) for one in re.findall(r"(\d+\.\d) bits", found["maps"]["Headroom of gradients"]))
        limit = 16 if dtype == "float16" else 128
        assert limit - 0.5 < least < limit + 1.5 and limit + 5 < most < limit + 8, found["maps"]


FAILS_SLOWLY = """
import torch
torch.manual_seed(0)
rows = torch.utils.data.TensorDataset(torch.randn(800, 16))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
warm_up = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.02**step)
step = 0
for epoch in range(20):
    for (x,) in torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True):
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm_up.step()
        step += 1
        if step % 50 == 0:
            torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, f"{step}.pt")
"""


def test_one_page_tells_a_slow_failure(tmp_path):
    """Of a run with the defaults: onset, warning, alarm, birth, cause, last good checkpoint, rows, and the way back."""
    run = helpers.run(tmp_path, FAILS_SLOWLY)
    first, warning = run.report["alarms"][0], run.report["warnings"][0]
    onset, good = first["onset"]["step"], first["last_good"]
    assert good["step"] <= onset < warning["step"] < first["step"] and warning["since"] == onset, run.text()
    (path,) = tmp_path.glob("finitude-runs/*/report.html")
    if 'id="report"' not in path.read_text():
        pytest.skip("finitude was built without node: its pages are tables")
    (found,) = pages.look({"file": path, "ask": ["text", "axe", "overflow", "shown"]})
    assert (found["errors"], found["requests"], found["axe"]) == ([], [], []) and found["overflow"] <= 0
    text = " ".join(found["text"].split()).lower()
    for words in (
        f"the loss grew since step {onset}",
        f"good checkpoint at step {good['step']}, onset at step {onset}, warning at step {warning['step']}",
        f"Alarm at step {first['step']}",
        "aten::pow",
        "learning-rate",
        f"Start from {good['checkpoint']}, of step {good['step']}, from before the onset at step {onset}",
        "--on-alarm rollback --rollback-every N",
        f"samples {first['births'][0]['samples'][0]}" if "samples" in first["births"][0] else "of the data set",
    ):
        assert words.lower() in text, (words, found["text"])


@pytest.mark.timed
def test_live_is_drawn_and_moved_in_time(large):
    with server.Server(str(large), 0) as one:
        threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True).start()
        found = pages.look(*[{"url": one.address(), "wait": 1500, "ask": ["paint"]}] * 2)
        one.is_ending.set()
        one.shutdown()
    print([round(one["paint"]) for one in found])
    assert min(one["paint"] for one in found) < FIRST_PAINT


def test_live_shows_what_comes_and_fetches_nothing_else(live):
    folder, one = live

    def train():
        time.sleep(3)
        with made_stores.opened(folder / "20260101-000000-a-1") as db:
            db.execute("INSERT INTO point VALUES(1, 1000, 1000, 0, 77, 77, 77, 77)")

    writer = threading.Thread(target=train)
    writer.start()
    (found,) = pages.look({"url": one.address(), "wait": 7000, "ask": ["shown", "text", "axe", "coloured"]})
    writer.join()
    assert (found["errors"], found["axe"]) == ([], [])
    origin = one.address().partition("?")[0]
    assert found["requests"] and all(address.startswith(origin) for address in found["requests"])
    assert found["shown"][0] == "Loss, newest 77" and found["coloured"] == 1.0
    assert "Loss is NaN, born in aten::log" in found["text"] and "Since step 700, 200 steps before" in found["text"]


def test_live_goes_over_to_a_new_run(live):
    folder, one = live

    def train():
        time.sleep(3)
        made_stores.run(folder / "20260202-000000-b-1", steps=30, parameters=0)

    writer = threading.Thread(target=train)
    writer.start()
    (found,) = pages.look({"url": one.address(), "wait": 12000, "ask": ["headings", "text"]})
    writer.join()
    assert found["errors"] == [] and found["headings"][0] == ["H1", "20260202-000000-b-1"]
    assert "2 runs in this folder" in found["text"]


def test_a_report_has_the_timeline_of_its_run(tmp_path):
    folder = made_stores.run(tmp_path / "run", steps=300, parameters=4)
    shutil.copy(pages.SAMPLES / "clean.json", folder / "report.json")
    got = helpers.finitude(tmp_path, "report", "run", "--html", "out.html")
    assert got.code == 0, got.text()
    if 'id="report"' not in (tmp_path / "out.html").read_text():
        pytest.skip("finitude was built without node: its pages are tables")
    (found,) = pages.look({"file": tmp_path / "out.html", "ask": ["shown", "contents", "axe", "overflow", "coloured"]})
    assert (found["errors"], found["requests"], found["axe"]) == ([], [], [])
    assert len(found["shown"]) == 5 and found["coloured"] == 1.0 and found["overflow"] <= 0
    assert ["Timeline", 1] in found["contents"]


def test_hostile_names_stay_text(tmp_path):
    folder = made_stores.run(tmp_path / "run", steps=30, parameters=2)
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    with made_stores.opened(folder) as db:
        db.execute("UPDATE series SET parameter = ?, optimizer = ? WHERE parameter IS NOT NULL", (hostile, hostile))
    made_stores.events(folder, made_stores.event("warning", 10, hostile, name=hostile))
    path = tmp_path / "out.html"
    path.write_text(page.filled(page.built(), hostile, json.loads(json.dumps(document.still(str(folder))))))
    (found,) = pages.look({"file": path, "ask": ["scripts", "text"]})
    assert (found["errors"], found["requests"], found["scripts"]) == ([], [], 2) and "<img src=x" in found["text"]
