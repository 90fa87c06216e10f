"""tools/wheels.py and tools/wheels_test.py, without building anything."""

import base64
import csv
import hashlib
import io
import pathlib
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import install_test  # noqa: E402
import test_matrix  # noqa: E402
import wheels  # noqa: E402
import wheels_test  # noqa: E402


def wheel_of(folder, torch, word):
    path = folder / torch / "finitude-0.1.0-cp311-cp311-linux_x86_64.whl"
    path.parent.mkdir()
    engine = f"finitude/_engines/{torch}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("finitude/__init__.py", word)
        archive.writestr(f"{engine}/_native.so", word)
        program = zipfile.ZipInfo(f"{engine}/finitude-replay")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, word)
        archive.writestr("finitude-0.1.0.dist-info/RECORD", "outdated")
    return path


def test_one_wheel_holds_all_engines(tmp_path):
    parts = [wheel_of(tmp_path, name, word) for name, word in (("torch2_13", "new"), ("torch2_7", "old"))]
    out = tmp_path / "merged/all.whl"
    wheels.merge(parts, out)
    with zipfile.ZipFile(out) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        modes = {info.filename: info.external_attr >> 16 & 0o111 for info in archive.infolist()}
    record = files.pop("finitude-0.1.0.dist-info/RECORD").decode()
    assert files["finitude/__init__.py"] == b"new" and len(files) == 5
    assert files["finitude/_engines/torch2_7/_native.so"] == b"old"
    assert modes["finitude/_engines/torch2_7/finitude-replay"] == 0o111
    digests = {row[0]: row[1:] for row in csv.reader(io.StringIO(record))}
    assert digests.pop("finitude-0.1.0.dist-info/RECORD") == ["", ""]
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert digests.pop(name) == [f"sha256={digest}", str(len(data))]
    assert not digests
    assert wheels_test.engines(out) == ["2.13", "2.7"]


def test_a_wheel_mark_survives_other_outcomes(tmp_path, monkeypatch):
    page = tmp_path / "compatibility.md"
    page.write_text((ROOT / "docs/compatibility.md").read_text())
    monkeypatch.setattr(test_matrix, "PAGE", page)
    for version in ("2.11.1", "2.11.2"):
        test_matrix.record_wheel("3.12", version)
    cell = test_matrix.read_table(page.read_text())[("2.11", "3.12")]
    assert cell.startswith("untested; wheel (2.11.2, ") and cell.count("wheel") == 1
    test_matrix.record("3.12", "2.11.2", "tested")
    cell = test_matrix.read_table(page.read_text())[("2.11", "3.12")]
    assert cell.startswith("tested (2.11.2, ") and "; wheel (2.11.2, " in cell


def test_all_pairs_are_those_that_are_supported(monkeypatch):
    monkeypatch.setattr(wheels, "find_python", lambda version: version != "3.12" and version)
    pairs = wheels.supported_pairs()
    assert pairs[0] == ("3.13", "2.15") and pairs[-1] == ("3.10", "2.7") and len(pairs) == len(set(pairs)) == 26
    assert ("3.10", "2.14") in pairs and ("3.10", "2.15") not in pairs


def test_two_commands_may_take_a_minute(monkeypatch):
    monkeypatch.setattr(wheels_test, "why_not_replayed", lambda bare: "not replayed" if bare == "broken" else None)
    for seconds, bare, why in ((59, "", None), (61, "", "more than 60 s"), (59, "broken", "not replayed")):
        clock = iter((100.0, 100.0 + seconds))
        monkeypatch.setattr(wheels_test.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(wheels_test, "why_not_explained", lambda bare, wheel: None)
        found, took = wheels_test.problem(bare, "a.whl")
        assert took == seconds and (found is None if why is None else why in found)
    page = test_matrix.PAGE.read_text()
    marked, places = wheels_test.TOOK.subn(wheels_test.took_text(12.4), page)
    assert places == 1 and " the two commands took 12 s at most" in marked


def test_each_way_to_install_has_a_row_to_be_marked():
    page = install_test.PAGE.read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(install_test.WAYS)
    for way in install_test.WAYS:
        before, after = page.splitlines(), install_test.mark(page, way, "works (2026-01-01)").splitlines()
        (changed,) = [(old, new) for old, new in zip(before, after) if old != new]
        assert changed[1].startswith(f"| `{way}` |") and changed[1].endswith("| works (2026-01-01) |")
        assert changed[0].split("|")[:3] == changed[1].split("|")[:3] and changed[1].count("|") == 4
    with pytest.raises(ValueError, match="0 rows"):
        install_test.mark(page, "pip install --user .", "works")
