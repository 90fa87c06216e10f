"""Finitude in a notebook, run by a real Jupyter kernel."""

import pytest

from helpers import TRAINING, environment

nbformat = pytest.importorskip("nbformat")  # the version matrix runs without Jupyter
NotebookClient = pytest.importorskip("nbclient").NotebookClient
pytestmark = pytest.mark.slow

LOOP = """
for i, x in enumerate(batches):
    print("step", i)
    opt.zero_grad()
    loss = loss_of(x)
    if i == BAD: loss = loss * NAN
    loss.backward()
    opt.step()
print("ended", finite())
"""


def run(folder, *cells):
    """The outputs of each cell; a cell that raises does not stop those after it."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip("\n")) for c in cells])
    client = NotebookClient(
        book, timeout=60, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment({"IPYTHONDIR": str(folder / "ipython")}))
    return [cell.outputs for cell in book.cells]


def streams(outputs, name="stdout"):
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)


def errors(outputs):
    return [o for o in outputs if o.output_type == "error"]


def pages(outputs):
    return [o.data for o in outputs if o.output_type in ("display_data", "execute_result") and "text/html" in o.data]


@pytest.fixture(scope="module")
def by_extension(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    return folder, run(
        folder,
        "%load_ext finitude",
        TRAINING,
        LOOP.replace("BAD", "None"),
        LOOP.replace("BAD", "4"),
        LOOP.replace("BAD", "3"),
        LOOP.replace("BAD", "0"),
        "%unload_ext finitude\nprint(finite())\nprint(torch.autograd._engine_run_backward.__module__)",
        LOOP.replace("BAD", "2"),
    )


def test_a_healthy_cell_shows_nothing_more(by_extension):
    _, (load, setup, healthy, *_) = by_extension
    assert load == [] and setup == []
    assert {(o.output_type, o.name) for o in healthy} == {("stream", "stdout")}
    assert streams(healthy) == "".join(f"step {i}\n" for i in range(6)) + "ended True\n"


@pytest.mark.parametrize(
    "cell, bad, way", [(3, 4, "run again in place"), (4, 3, "run again in place"), (5, 0, "every op was recorded")]
)
def test_bad_step_stops_cell_and_shows_report_below(by_extension, cell, bad, way):
    outputs = by_extension[1][cell]
    assert streams(outputs) == "".join(f"step {i}\n" for i in range(bad + 1))  # the second run prints nothing
    (error,) = errors(outputs)
    assert error.ename == "NonFiniteError"
    (page,) = pages(outputs)
    assert page["text/html"].startswith("<iframe") and "loss * NAN" in page["text/html"]
    assert f"Cell In[{cell + 1}]:5" in page["text/plain"] and "ipykernel" not in page["text/html"]
    assert "stopped before the optimizer" in page["text/plain"] and "born in forward" in page["text/plain"]
    assert "loss * NAN" in page["text/plain"] and way in page["text/plain"].replace("\n              ", " ")
    assert "finitude:" not in streams(outputs, "stderr")


def test_unloading_leaves_nothing_behind(by_extension):
    folder, (*_, unload, after) = by_extension
    assert streams(unload) == "True\ntorch.autograd.graph\n"
    assert "finitude: " in streams(unload, "stderr") and "3 alarms" in streams(unload, "stderr")
    assert not errors(after) and streams(after).endswith("ended False\n")
    assert len(list(folder.glob("finitude-runs/*/report.html"))) == 1


def test_cleared_cell_output_stays_cleared_after_rerun(tmp_path):
    loop = "from IPython.display import clear_output\n" + LOOP.replace('    print("step", i)\n', "").replace(
        "    opt.step()\n", "    opt.step()\n    clear_output(wait=True)\n    print('after', i)\n"
    )
    *_, outputs = run(tmp_path, "%load_ext finitude", TRAINING, loop.replace("BAD", "4"))
    assert streams(outputs) == "after 3\n" and len(pages(outputs)) == len(errors(outputs)) == 1
    assert "by rewind" in pages(outputs)[0]["text/plain"]


def test_watch_in_a_cell(tmp_path):
    setup, empty, trained, shown, closed = run(
        tmp_path,
        TRAINING,
        "import finitude\nwatch = finitude.watch(model, opt, on_alarm='skip')\nwatch",
        LOOP.replace("BAD", "4"),
        "watch",
        "watch.close()",
    )
    assert "no step yet" in pages(empty)[0]["text/html"]
    assert not errors(trained) and streams(trained) == "".join(f"step {i}\n" for i in range(6)) + "ended True\n"
    (page,) = pages(trained)
    assert "step 4 skipped" in page["text/plain"] and "loss * NAN" in page["text/html"]
    assert pages(shown)[0]["text/html"].startswith("<iframe")
    assert (
        streams(closed, "stderr").splitlines()[-1].startswith("finitude: 6 steps watched")
    )  # its capsule may have been waited for


IN_GRAPH = "weight = torch.zeros(3, requires_grad=True)\nloss = (weight * 2).log().mean()"
MADE = "hidden = torch.full((2, 3), -1.0)\nroot = hidden.sqrt()\nlast = root * 2"


def test_a_cell_is_explained(tmp_path):
    cells = [
        "import finitude, torch",
        MADE,
        "finitude.explain(last)",
        "%load_ext finitude",
        f"%%explain\n{MADE}",
        "%%explain\n(torch.zeros(2) - 1).log()",
        "%%explain\nones = torch.ones(3)\nones.sum()",
        "%%explain\nbad = 1 / 0",
        TRAINING,
        "%%explain" + LOOP.replace("BAD", "2"),
        "print(last.isnan().all().item())\n%unload_ext finitude",
        "%%explain\n1",
        IN_GRAPH,
        "finitude.explain(loss)",
    ]
    _, _, plain, _, bound, value, finite, error, _, trained, after, unloaded, _, read = run(tmp_path, *cells)
    assert "type %%explain at the top of the cell that makes it, after %load_ext finitude" in errors(plain)[0].evalue
    assert "born in forward   aten::sqrt   Cell In[5]:3   root = hidden.sqrt()" in pages(bound)[-1]["text/plain"]
    assert "6 NaN of it were born here" in pages(bound)[-1]["text/plain"] and "fix  " in pages(bound)[-1]["text/plain"]
    assert "aten::log   Cell In[6]:2" in pages(value)[-1]["text/plain"]
    assert pages(finite)[-1]["text/plain"] == "every value is finite" and not errors(finite)
    assert [one.ename for one in errors(error)] == ["ZeroDivisionError"] and not pages(error)
    assert [one.ename for one in errors(trained)] == ["NonFiniteError"]
    assert "Cell In[10]:6" in pages(trained)[0]["text/plain"] and "loss * NAN" in pages(trained)[0]["text/plain"]
    assert streams(after).startswith("True") and "%%explain` not found" in str(unloaded)
    assert "born in forward   aten::log" in pages(read)[0]["text/plain"]
    assert "for line, cause and fix: type %%explain at the top" in pages(read)[0]["text/plain"]
