"""The scripts of tools/ that decide something: counting test results, the version table, stand-in libraries."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import count_tests
import stub_libraries
import terminal_picture
import test_matrix
import tuned_limits

PASSED = '<testsuite><testcase classname="A" name="one"/><testcase name="two"><skipped/></testcase></testsuite>'
FAILED = '<testsuite><testcase name="one"/><testcase name="two"><failure/></testcase></testsuite>'


@pytest.mark.parametrize(
    "files, failed_steps, last_line, code",
    [
        ({"a": PASSED}, [], "1 passed, 0 failed", 0),
        ({"a": PASSED, "b": FAILED}, ["b=second"], "2 passed, 1 failed", 1),
        ({"a": PASSED}, ["a=crashed at exit"], "1 passed, 1 failed", 1),
        ({"a": FAILED}, ["a=first", "b=build of the second"], "1 passed, 2 failed", 1),
        ({"a.0": PASSED, "a.1": FAILED, "b": PASSED}, ["a=of two processes"], "3 passed, 1 failed", 1),
        ({}, [], "0 passed, 1 failed", 1),
        ({"a": "<testsuite/>"}, [], "0 passed, 1 failed", 1),
    ],
)
def test_every_failure_is_counted_once(tmp_path, capsys, files, failed_steps, last_line, code):
    for name, text in files.items():
        (tmp_path / f"{name}.xml").write_text(text)
    assert count_tests.main(tmp_path, failed_steps) == code
    assert capsys.readouterr().out.splitlines()[-1] == last_line


def test_a_killed_part_of_a_test_program_does_not_keep_the_others_from_running(tmp_path):
    function = re.search(r"^run_gtest\(\) \{.*?^\}", (ROOT / "tools/test.sh").read_text(), re.M | re.S).group()
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\n[ "$GTEST_SHARD_INDEX" != 1 ] || kill -9 $$\nxml=${2#--gtest_output=xml:}\n'
        'echo "$GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS" >"$xml"\n'
    )
    program.chmod(0o755)
    done = subprocess.run(["bash", "-c", f'results=$1\n{function}\nrun_gtest asan "$1/program"', "_", tmp_path])
    found = sorted(path.read_text().split() for path in tmp_path.glob("asan.program.*.xml"))
    count = int(found[0][2])
    assert done.returncode != 0 and count > os.cpu_count() - 1
    assert [int(one[0]) for one in found] == [n for n in sorted(range(count), key=str) if n != 1]


def test_an_outcome_changes_its_cell_only(tmp_path, monkeypatch):
    page = tmp_path / "compatibility.md"
    page.write_text((ROOT / "docs/compatibility.md").read_text())
    monkeypatch.setattr(test_matrix, "PAGE", page)
    before = test_matrix.read_table(page.read_text())
    test_matrix.record("3.12", "2.13.0", "compiled")
    after = test_matrix.read_table(page.read_text())
    assert after.pop(("2.13", "3.12")).startswith("compiled (2.13.0, ")
    before.pop(("2.13", "3.12"))
    assert after == before


def test_the_table_keeps_what_ci_tests(tmp_path, monkeypatch):
    page = tmp_path / "compatibility.md"
    page.write_text((ROOT / "docs/compatibility.md").read_text())
    monkeypatch.setattr(test_matrix, "PAGE", page)
    test_matrix.record("3.11", "2.13.0", "compiled")
    assert "CI" in test_matrix.read_table(page.read_text())[("2.13", "3.11")]


def test_a_library_loads_with_its_stand_in(tmp_path):
    """A library that needs a versioned and an unversioned symbol of a CUDA library that is then taken away."""
    real, torch, stubs = tmp_path / "real", tmp_path / "torch", tmp_path / "stubs"
    (torch / "lib").mkdir(parents=True)
    real.mkdir()

    def build(target, source, *flags):
        (tmp_path / "a.c").write_text(source)
        command = ["gcc", "-shared", "-fPIC", "-o", str(target), str(tmp_path / "a.c"), *flags]
        subprocess.run(command, check=True)

    (tmp_path / "a.map").write_text("node_7 { global: cudaFirst; };")
    versioned = ["-Wl,-soname,libcufirst.so.7", f"-Wl,--version-script={tmp_path / 'a.map'}"]
    build(real / "libcufirst.so", "int cudaFirst(void) { return 0; }", *versioned)
    build(real / "libncclsecond.so", "int ncclSecond(void) { return 0; }", "-Wl,-soname,libncclsecond.so.2")
    build(
        torch / "lib/libuser.so",
        "int cudaFirst(void); int ncclSecond(void); int both(void) { return 100 * cudaFirst() + ncclSecond(); }",
        f"-L{real}", "-lcufirst", "-lncclsecond",
    )  # fmt: skip
    with pytest.raises(OSError):
        ctypes.CDLL(str(torch / "lib/libuser.so"))

    assert stub_libraries.make_stubs(torch, stubs) == ["libcufirst.so.7", "libncclsecond.so.2"]
    call = f"import ctypes; print(ctypes.CDLL({str(torch / 'lib/libuser.so')!r}).both())"
    done = subprocess.run(
        [sys.executable, "-c", call], env={"LD_LIBRARY_PATH": str(stubs)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "3535", done.stderr


def test_tuned_limits_page_matches_the_code(tmp_path):
    assert tuned_limits.PAGE.read_text() == tuned_limits.page(), "run python tools/tuned_limits.py"
    source = tmp_path / "a.h"
    source.write_text(
        "constexpr int kMostRows = 64;  // of a batch; more are counted\n// Seconds: of a wait.\n"
        "inline constexpr double kLongest{1.5};\nconstexpr int kMask = 1;\n"
    )
    assert list(tuned_limits.of_cpp(source)) == [
        ("kMostRows", "64", "of a batch; more are counted"),
        ("kLongest", "1.5", "Seconds: of a wait."),
        ("kMask", "1", ""),
    ]
    module = tmp_path / "a.py"
    module.write_text('MOST = 3 << 20  # bytes\nNAMES = ("a", 2)\nname = 3  # no constant\n')
    assert list(tuned_limits.of_python(module)) == [("MOST", "3 << 20", "bytes")]


def test_a_picture_shows_the_end_of_a_terminal_in_its_colours(tmp_path, monkeypatch):
    text = "one\\ntwo\\n10%%\\r\\033[1;31m<bad>\\033[0m & \\033[2Kwarm \\nfinitude: 0123456789abcdef\\nlast\\n"
    words = ["--columns", "20", "--rows", "5", "--until", "finitude: ", str(tmp_path / "a.svg"), "printf", text]
    monkeypatch.setattr(sys, "argv", ["terminal_picture.py", *words])
    assert terminal_picture.main() == 0
    root = xml.etree.ElementTree.parse(tmp_path / "a.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    lines = root.findall(f".//{name}text")
    shown = ["".join(line.itertext()) for line in lines]
    assert shown[0].startswith("$ printf") and shown[1:] == ["two", "<bad> & warm ", "finitude: 0123456789", "abcdef"]
    (colour,) = root.findall(f".//{name}text/{name}tspan[@fill]")
    assert (colour.text, colour.get("fill"), colour.get("font-weight")) == ("<bad>", "#ff7b72", "bold")
    monkeypatch.setattr(sys, "argv", ["terminal_picture.py", str(tmp_path / "b.svg"), "true"])
    with pytest.raises(SystemExit, match="true printed nothing"):
        terminal_picture.main()


def test_pictures_of_the_readme_are_there_and_small():
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(shown) >= 2 and all((ROOT / one).stat().st_size < 200_000 for one in shown), shown
    picture = (ROOT / "docs/images/terminal.svg").read_text()
    assert len(picture) < 60_000 and "born in" in picture and str(ROOT) not in picture
