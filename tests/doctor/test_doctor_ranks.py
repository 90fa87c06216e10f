"""`finitude doctor --ranks`: each device computes and remembers right, all ranks come to the same sums, clocks agree."""

import json
import types

import pytest
import torch

from finitude.doctor import command, device_health, rank_health
from helpers import plain, write_script

CPU = torch.device("cpu")
RANKS = """
import multiprocessing, os, socket, sys, time

def rank(number, port):
    os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    if number == 1 and "absent" in sys.argv:
        return
    if number == 1 and "late clock" in sys.argv:
        clock = time.time
        time.time = lambda: clock() - 7
    from finitude.doctor import command
    sys.exit(command.main(["--ranks", "--json", "--seconds", "3" if "absent" in sys.argv else "30"]))

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
both = [multiprocessing.get_context("fork").Process(target=rank, args=(n, port)) for n in range(2)]
for process in both:
    process.start()
for process in both:
    process.join()
os.write(2, f"codes {[process.exitcode for process in both]}".encode())
"""


def examined(folder, *words):
    write_script(folder, RANKS)
    return plain(folder, "train.py", *words)


@pytest.mark.slow
def test_healthy_ranks_come_to_the_same_sums(tmp_path):
    got = examined(tmp_path)
    assert "codes [0, 0]" in got.err, got.text()
    document = json.loads(got.out)
    assert (document["ranks"], document["findings"], sorted(document["of"])) == (2, [], ["0", "1"])
    for one in document["of"].values():
        assert [r["bytes"] for r in one["reduced"]] == [4 * n for n in rank_health.SIZES]
        assert abs(one["clock"]["ahead_s"]) < 1 and one["compute"]["float64_gflops"] > 0


@pytest.mark.slow
def test_a_clock_that_is_late_is_bad(tmp_path):
    got = examined(tmp_path, "late clock")
    assert "codes [1, 1]" in got.err, got.text()
    (finding,) = json.loads(got.out)["findings"]
    assert finding == {"rank": 1, "verdict": "bad", "text": "its clock is 7.0 s behind that of rank 0"}


@pytest.mark.slow
def test_a_rank_that_never_comes_is_no_hang(tmp_path):
    got = examined(tmp_path, "absent")
    assert "codes [4, 0]" in got.err and "the ranks did not meet" in got.err and not got.out, got.text()


def test_without_a_launcher_it_says_how(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert command.main(["--ranks"]) == 4
    assert "torchrun" in capsys.readouterr().err


def test_wrong_products_and_bytes_are_found(monkeypatch):
    assert device_health.compute(CPU)[1] == [] and device_health.memory(CPU, 1)[1] == []
    product, fill = torch.Tensor.__matmul__, torch.Tensor.fill_

    def wrong(a, b):
        result = product(a, b)
        result[3, 4] += 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    assert "1 of 262144 elements of a float32 product" in device_health.compute(CPU)[1][0]
    monkeypatch.setattr(torch.Tensor, "fill_", lambda block, value: fill(block, value)[7:8].bitwise_xor_(1))
    assert len(device_health.memory(CPU, 1)[1]) == len(device_health.PATTERNS)


def nvml(**functions):
    """A pretended pynvml."""
    names = ("CORRECTED", "UNCORRECTED")
    kinds = {f"NVML_MEMORY_ERROR_TYPE_{name}": name for name in names}
    plain = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: index, "NVML_VOLATILE_ECC": 0}
    return types.SimpleNamespace(**kinds, **plain, nvmlEventTypeXidCriticalError=8, **functions)


def test_ecc_errors_and_rows_are_read():
    library = nvml(
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: {"CORRECTED": 5, "UNCORRECTED": 2}[kind],
        nvmlDeviceGetRemappedRows=lambda handle: (0, 1, 1, 0),
    )
    facts, bad = device_health.driver(0, library)
    assert facts == {"ecc_corrected": 5, "ecc_uncorrected": 2, "rows_pending": True, "rows_failed": False}
    assert len(bad) == 2 and "2 uncorrected" in bad[0]
    assert device_health.driver(0, nvml()) == ({}, [])  # a device that has neither


def test_xid_errors_are_heard():
    events = iter([types.SimpleNamespace(eventData=79)])
    library = nvml(
        nvmlEventSetCreate=object,
        nvmlDeviceRegisterEvents=lambda *_: None,
        nvmlEventSetWait_v2=lambda *_: next(events),
        nvmlEventSetFree=lambda _: None,
    )
    assert device_health.Xids(0, library).close() == ["an Xid error while it was examined: Xid 79"]
    assert device_health.Xids(0, nvml()).close() == []


def one(**more):
    plain = {"bad": [], "clock": {"ahead_s": 0.0, "within_s": 0.0}, "device": "cpu", "host": "a", "reduced": []}
    return {**plain, "memory": {"seconds": 1.0}, "compute": {"float64_gflops": 10.0}, **more}


def test_absent_and_slow_ranks_are_named():
    found = {0: one(), 1: one(), 2: one(memory={"seconds": 4.0})}
    document = rank_health.judged(found, 4, 30.0)
    texts = {f["rank"]: (f["verdict"], f["text"]) for f in document["findings"]}
    assert texts == {
        2: ("warn", "its memory took 4.0 times as long as on most ranks"),
        3: ("bad", "did not answer within 30 s"),
    }
    assert rank_health.text_of(document).endswith("3 of 4 ranks answered: 1 bad\n")
