"""bfloat16 and float8 on hardware that has them."""

import ast

from ..registry import check, note, warn


@check("P3", "dtype-on-hardware", "source")
def query_that_says_yes(source):
    """`is_bf16_supported()` used to choose a dtype: it is also True where bfloat16 is only emulated, slower than
    float32; float8 in a script that never asks for the compute capability."""
    for call in source.calls("torch.cuda.is_bf16_supported"):
        given = call.argument("including_emulation", 0)
        if given is None or isinstance(given, ast.Constant) and given.value:
            yield warn(
                "is_bf16_supported() is also True on GPUs that only emulate bfloat16",
                "torch.cuda.is_bf16_supported(including_emulation=False), or get_device_capability() >= (8, 0)",
                call.at,
            )
    asks = source.says("get_device_capability") or source.says("get_device_properties")
    for f in source.files:
        used = [n for n in ast.walk(f.tree) if isinstance(n, ast.Attribute) and f.dotted(n).startswith("torch.float8_")]
        if used and not asks and source.says("cuda"):
            yield note(
                f"{f.dotted(used[0])} is used, and nothing asks what the card is",
                "torch.cuda.get_device_capability() >= (8, 9): cards below have no float8",
                (f.path, used[0].lineno),
            )
            return


@check("P3", "dtype-on-hardware", "steps")
def emulated(steps):
    """bfloat16 computed on a GPU below compute capability 8.0, by autocast or by weights of that dtype; float8 below
    8.9."""
    capability = tuple(steps.get("capability") or ())
    if not capability:
        return
    regions = [a for a in steps.training_autocast() if a["device"] == "cuda" and a["dtype"] == "bfloat16"]
    layers = [one for one in steps.layers if one["device"] == "cuda" and one["dtype"] == "bfloat16"]
    if capability < (8, 0) and (regions or layers):
        yield warn(
            f"bfloat16 is emulated on {steps.device_name} (compute capability {capability[0]}.{capability[1]})",
            "float16 with a GradScaler, or float32, on this card",
            steps.at((regions or layers)[0]),
            capability=list(capability),
        )
    small = [layer for layer in steps.layers if layer["dtype"].startswith("float8")]
    if capability < (8, 9) and small:
        yield warn(
            f"{small[0]['name']} computes in {small[0]['dtype']}, which {steps.device_name} does not have",
            "float8 takes compute capability 8.9",
            steps.at(small[0]),
        )
