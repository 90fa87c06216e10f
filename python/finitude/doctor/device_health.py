"""What one rank can find out about its own device: does it compute and remember what it is given, and what has its
driver counted. Each check gives (facts, what is bad)."""

from __future__ import annotations

import importlib
import time

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIDE = 512  # of the matrices: their products are whole numbers below 2**24, exact in float32 in any order
PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
REPEATS = 3
_XID = "an Xid error while it was examined"


def compute(device: torch.device) -> tuple[dict[str, Any], list[str]]:
    """Products of matrices of small whole numbers, whose every element is known without another product."""
    rows = torch.arange(SIDE, device=device) % 7
    columns = torch.arange(SIDE, device=device) % 5
    bad, seconds = [], 0.0
    for dtype in (torch.float32, torch.float64):
        a = rows.to(dtype)[:, None].expand(SIDE, SIDE).contiguous()
        b = columns.to(dtype)[None, :].expand(SIDE, SIDE).contiguous()
        expected = (rows[:, None] * columns[None, :] * SIDE).to(dtype)  # of whole numbers
        for _ in range(REPEATS):
            began = time.perf_counter()
            product = a @ b
            _synchronize(device)
            seconds = time.perf_counter() - began
            if wrong := int((product != expected).sum()):
                name = str(dtype).removeprefix("torch.")
                bad.append(f"{wrong} of {SIDE * SIDE} elements of a {name} product of matrices are wrong")
                break
    return {"float64_gflops": round(2 * SIDE**3 / max(seconds, 1e-9) / 1e9, 1)}, bad


def memory(device: torch.device, megabytes: int) -> tuple[dict[str, Any], list[str]]:
    """Patterns that are written are read again. megabytes: how much is tried."""
    block = torch.empty(megabytes << 20, dtype=torch.uint8, device=device)
    bad, seconds = [], 0.0
    for pattern in PATTERNS:
        began = time.perf_counter()
        block.fill_(pattern)
        differs = block != pattern
        is_wrong = bool(differs.any())
        seconds += time.perf_counter() - began
        if is_wrong:
            bad.append(f"{int(differs.sum())} of {block.numel()} bytes are not {pattern:#04x} as they were written")
    return {"megabytes": megabytes, "seconds": round(seconds, 4)}, bad


def driver(index: int, library: Any = None) -> tuple[dict[str, Any], list[str]]:
    """What NVML has counted for that GPU: ECC errors, memory that waits to be replaced, Xid errors from now on
    (`Xids`). library: the module pynvml, which is not needed otherwise; {} where it is not installed or has no
    answer."""
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return {}, []
    facts: dict[str, Any] = {}
    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByIndex(index)
    except Exception as e:  # NVMLError of a class that is made at run time
        return {"not_read": type(e).__name__}, []
    for name, kind in (
        ("corrected", "NVML_MEMORY_ERROR_TYPE_CORRECTED"),
        ("uncorrected", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    ):
        try:
            count = library.nvmlDeviceGetTotalEccErrors(handle, getattr(library, kind), library.NVML_VOLATILE_ECC)
            facts[f"ecc_{name}"] = int(count)
        except Exception:  # a device without ECC
            continue
    try:
        _, _, pending, failed = library.nvmlDeviceGetRemappedRows(handle)
        facts.update(rows_pending=bool(pending), rows_failed=bool(failed))
    except Exception:  # before Ampere
        pass
    bad = []
    if facts.get("ecc_uncorrected"):
        bad.append(f"{facts['ecc_uncorrected']} uncorrected ECC errors since the driver was loaded")
    if facts.get("rows_pending") or facts.get("rows_failed"):
        bad.append("rows of its memory are to be replaced: it needs a reset, or an exchange")
    return facts, bad


class Xids:
    """Xid errors of that GPU while this is open."""

    def __init__(self, index: int, library: Any = None):
        self._library, self._event_set = library, None
        try:
            if library is None:
                library = importlib.import_module("pynvml")
            library.nvmlInit()
            events = library.nvmlEventSetCreate()
            handle = library.nvmlDeviceGetHandleByIndex(index)
            library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
            self._library, self._event_set = library, events
        except Exception:  # no NVML, or a device that reports none
            pass

    def close(self) -> list[str]:
        """What is bad."""
        if self._event_set is None:
            return []
        found = []
        try:
            while len(found) < 8:
                found.append(int(self._library.nvmlEventSetWait_v2(self._event_set, 1).eventData))
        except Exception:  # NVML_ERROR_TIMEOUT: there is none left
            pass
        try:
            self._library.nvmlEventSetFree(self._event_set)
        except Exception:
            pass
        return [f"{_XID}: Xid {number}" for number in found]


def _synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
