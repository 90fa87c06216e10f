"""What changes what torch computes beside the program: switches and seeds, as a capsule records them."""

from __future__ import annotations

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


OLD = ("matmul_precision", "tf32_matmul", "tf32_cudnn")  # torch 2.9, which has fp32_precision, warns who reads them


def seeds() -> dict[str, int]:
    found = {"torch": torch.initial_seed()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.initial_seed()
    return found


def _fills_memory():
    return torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a property of the module


def _switches():
    yield "threads", torch.get_num_threads
    yield "interop_threads", torch.get_num_interop_threads
    yield "default_dtype", lambda: str(torch.get_default_dtype()).removeprefix("torch.")
    yield "matmul_precision", torch.get_float32_matmul_precision
    yield "anomaly_mode", torch.is_anomaly_enabled
    yield "deterministic", torch.are_deterministic_algorithms_enabled
    yield "deterministic_warn_only", torch.is_deterministic_algorithms_warn_only_enabled
    yield "fill_uninitialized_memory", _fills_memory
    yield "tf32_matmul", lambda: torch.backends.cuda.matmul.allow_tf32
    yield "tf32_cudnn", lambda: torch.backends.cudnn.allow_tf32
    for name, backend in (
        ("all", torch.backends),
        ("cuda_matmul", torch.backends.cuda.matmul),
        ("mkldnn_matmul", torch.backends.mkldnn),
    ):
        yield f"fp32_precision_{name}", lambda backend=backend: backend.fp32_precision  # from torch 2.9 on
    yield (
        "reduced_precision_reduction_float16",
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    )
    yield (
        "reduced_precision_reduction_bfloat16",
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    )
    yield "cudnn", lambda: torch.backends.cudnn.enabled
    yield "cudnn_benchmark", lambda: torch.backends.cudnn.benchmark
    yield "cudnn_deterministic", lambda: torch.backends.cudnn.deterministic
    yield "mkldnn", lambda: torch.backends.mkldnn.enabled
    yield "sdp_flash", torch.backends.cuda.flash_sdp_enabled
    yield "sdp_mem_efficient", torch.backends.cuda.mem_efficient_sdp_enabled
    yield "sdp_math", torch.backends.cuda.math_sdp_enabled
    yield "cpu_capability", torch.backends.cpu.get_cpu_capability


def flags(may_warn: bool = True) -> dict[str, Any]:
    """Name -> value. A switch that this torch does not have, or does not want to be asked for, is skipped. may_warn:
    torch may print a warning of its own."""
    found = {}
    skipped = () if may_warn or not hasattr(torch.backends, "fp32_precision") else OLD
    for name, read in _switches():
        if name in skipped:
            continue
        try:
            value = read()
        except (AttributeError, RuntimeError):
            continue
        found[name] = value if isinstance(value, (bool, int, str)) else str(value)
    return found
