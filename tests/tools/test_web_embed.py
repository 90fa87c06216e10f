"""How the page of a report gets into the library, and what a build without node does: cmake/web_embed.cmake, tools/web.sh."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake")
ODD = '<p>a;b [c] \\n \\ "d" ${e} @f@ #g ;; )~ {{h}}</p>\n'


def embed(root, build="ON", path=None):
    out = root / "page.inc"
    words = [CMAKE, f"-DOUT={out}", f"-DROOT={root}", f"-DBUILD={build}", "-P", ROOT / "cmake" / "web_embed.cmake"]
    env = {**os.environ, **({"PATH": str(path)} if path else {})}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    return done, out.read_text() if out.exists() else ""


def parts(text):
    return re.findall(r'R"~~\((.*?)\)~~",\n', text, re.DOTALL)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "web" / "dist").mkdir(parents=True)
    return tmp_path


def test_page_is_embedded_byte_for_byte(tree):
    (tree / "tools" / "web.sh").write_text("exit 0\n")
    page = ODD * 1000
    (tree / "web" / "dist" / "page.html").write_text(page)
    done, text = embed(tree)
    assert done.returncode == 0, done.stderr
    assert "".join(parts(text)) == page and all(len(part) < 65536 for part in parts(text))


def test_end_of_a_literal_is_refused(tree):
    (tree / "tools" / "web.sh").write_text("exit 0\n")
    (tree / "web" / "dist" / "page.html").write_text('a)~~"b')
    assert embed(tree)[0].returncode != 0


@pytest.fixture
def without_node(tree):
    """A PATH that has what tools/web.sh calls, but for node."""
    shutil.copy(ROOT / "tools" / "web.sh", tree / "tools")
    tools = tree / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "find"):
        (tools / tool).symlink_to(shutil.which(tool))
    return tools


def test_build_without_node_says_so_in_one_line(tree, without_node):
    done, text = embed(tree, path=without_node)
    assert done.returncode == 0 and parts(text) == [""]
    assert done.stderr.strip().splitlines() == [
        "page: reports will be pages of tables, because the page was not built: node and npm are not here"
    ]


def test_a_wheel_has_to_have_the_page(tree, without_node):
    done, text = embed(tree, "REQUIRED", path=without_node)
    assert done.returncode != 0 and "page: it was not built: node and npm are not here" in done.stderr and not text


def test_build_may_leave_the_page_out(tree):
    done, text = embed(tree, build="OFF")
    assert (done.returncode, parts(text), done.stderr) == (0, [""], "")
