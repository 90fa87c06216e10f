"""bench/sense/report.py: what it makes of measurements whose medians and shares are known."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SIZES = (64 << 10, 16 << 20)


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("kernels_report", ROOT / "bench/sense/report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document(slow=()):
    """A plain read of 100 ns by its better variant, scans of 104 ns; 200 ns for the names in `slow`."""
    runs = []

    def add(name, times, unit="ns"):
        for time in times:
            # Only the clock that counts is right: that of the CPU for one thread, the wall's for two.
            clocks = {"cpu_time": time, "real_time": 9e9} if "/1/" in name else {"cpu_time": 9e9, "real_time": time}
            runs.append({"run_name": name + "/real_time", "run_type": "iteration", "time_unit": unit, **clocks})
        runs.append({"run_name": name + "/real_time", "run_type": "aggregate", "time_unit": unit, **clocks})

    for threads in (1, 2):
        for size in SIZES:
            add(f"plain_read:8/other/{threads}/{size}", (0.1, 0.09, 0.3), "us")
            add(f"plain_read:4-pages/other/{threads}/{size}", (150, 150, 150))
            for dtype in ("float32", "bfloat16", "float16", "float64"):
                for what in ("quick", "full", "isfinite_all", "foreach_norm", "amp_unscale"):
                    name = f"{what}/{dtype}/{threads}/{size}"
                    add(name, (200, 200, 200) if name in slow else (104, 103, 500))
    add(f"full_unsquared/float16/1/{SIZES[1]}", (50, 50, 50))
    for what in ("quick", "full"):
        add(f"{what}/float32/1/64", (5, 5, 5))
        add(f"{what}/float32/1/20", (7, 7, 7))
        add(f"{what}_small/float32/1/0", (1024 * 6, 1024 * 6, 1024 * 6))
    context = {
        "date": "2026-01-02T03:04:05", "num_cpus": 2, "load_avg": [0.25, 0, 0], "isa": "AVX2", "compiler": "12",
        "caches": [{"type": "Data", "level": 1, "size": 32768}], "torch": "2.0",
    }  # fmt: skip
    return {"context": context, "benchmarks": runs}


def test_shares_are_of_the_fastest_plain_read(report):
    results = report.Results(document())
    assert results.plain_read(1, SIZES[0])[0] == "8"
    assert results.plain_read(1, SIZES[0])[1].median == 100
    assert results.share("quick", "float16", 2, SIZES[1]) == pytest.approx(100 / 104)


def test_page_lists_reached_and_missed_aims(report, tmp_path):
    slow = f"quick/bfloat16/2/{SIZES[1]}"
    (tmp_path / "in.json").write_text(json.dumps(document({slow})))
    report.main(tmp_path / "in.json", tmp_path / "out.md")
    text = (tmp_path / "out.md").read_text()
    assert "| quick, 16 MB and more: 95 % | 7 of 8 | bfloat16 16 MB 2 threads: 50 % |" in text
    assert "| full, 16 MB and more: 75 % | 8 of 8 | none |" in text
    assert "| quick, below 16 MB: 75 % | 8 of 8 | none |" in text
    assert "| a small tensor, quick: 20 ns | reached | 6.0 ns |" in text
    assert "2026-01-02" in text and "AVX2" in text and "torch 2.0" in text


def test_each_cell_below_aim_is_named_with_reason(report):
    slow = {f"quick/float64/1/{SIZES[1]}", f"full/float16/1/{SIZES[1]}", f"full/float16/2/{SIZES[1]}",
            f"quick/float32/1/{SIZES[0]}"}  # fmt: skip
    text = "\n".join(report.page(report.Results(document(slow)), ""))
    rows = [line for line in text.split("## Not reached, and why")[1].splitlines() if " thread" in line]
    assert len(rows) == len(slow)
    by_cell = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[1:] for row in rows}
    aim, share, why = by_cell["quick float64 16 MB 1 thread"]
    assert (aim, share.split()[0]) == ("95 %", "50")
    assert "scan's own order: 67 %; the order costs it" in why
    assert "without the sum of squares: 200 %; that sum is 75 %" in by_cell["full float16 16 MB 1 thread"][2]
    assert "not measured" in by_cell["full float16 16 MB 2 threads"][2]
    why = by_cell["quick float32 64 KB 1 thread"][2]
    assert "5.0 ns" in why and "51 %" in why  # 100 / (200 - 5)


def test_cell_too_noisy_to_judge_is_undecided(report):
    noisy = document()
    name = f"full/float32/1/{SIZES[1]}/real_time"
    noisy["benchmarks"] = [run for run in noisy["benchmarks"] if run["run_name"] != name]
    for time in (80, 90, 140, 150, 160):
        noisy["benchmarks"].append({"run_name": name, "run_type": "iteration", "time_unit": "ns", "cpu_time": time})
    rows = [row for row in report.not_reached(report.Results(noisy)) if "full float32 16 MB 1 thread" in row]
    assert len(rows) == 1 and "not decided by this run" in rows[0]


def test_where_all_is_reached_nothing_is_explained(report):
    assert list(report.not_reached(report.Results(document()))) == ["Every aim is reached."]


def test_without_torch_the_page_says_so(report):
    alone = document()
    alone["benchmarks"] = [
        run
        for run in alone["benchmarks"]
        if run["run_name"].split("/")[0]
        in ("plain_read:8", "plain_read:4-pages", "quick", "full", "quick_small", "full_small")
    ]
    del alone["context"]["torch"]
    text = "\n".join(report.page(report.Results(alone), ""))
    assert "Not measured: built without torch." in text
