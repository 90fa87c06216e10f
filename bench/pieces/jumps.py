"""What code costs that is not there: how much longer the rest of a step takes because some other code ran within it.

A processor remembers where the jumps that it has taken lately lead to. A step of torch has more of them than it can
remember, so every jump of somebody else's, taken once a step, costs a second time when the program comes to the one
that had to make room for it. The engine's meter sees the first of the two only. Here a function that consists of
nothing but jumps, or of nothing but instructions that do nothing, is called before `optimizer.step` of a small MLP:
what it takes itself, and what the step takes more beside that.

x86-64 only: the functions are made of bytes."""

import ctypes
import mmap
import platform
import random
import statistics
import time

LINE, PAGE = 64, 4096
STEPS, ROUNDS = 200, 12
NOTHING = bytes([0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0])  # one instruction of eight bytes
RETURN, JUMP = b"\xc3", b"\xe9"
# name, instructions of code lines, jumps, pages that they lie in
TRIALS = (
    ("nothing: a function that returns", 0, 0),
    ("600 lines of code without a jump", 600, 0),
    ("600 jumps in 10 pages", 0, 10),
    ("600 jumps in 100 pages", 0, 100),
)
JUMPS = 600


def _function(code):
    """The bytes as a function without arguments; it lives as long as the memory that comes with it."""
    memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(bytes(code))
    return memory, ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))


def _code(lines, pages):
    size = max(pages * PAGE, (lines + 1) * LINE, PAGE)
    code = bytearray(RETURN * size)
    if not pages:
        code[: lines * LINE] = NOTHING * (lines * LINE // len(NOTHING))
        return code
    order = [0, *random.Random(1).sample(range(1, size // LINE), JUMPS - 1)]
    for a, b in zip(order, order[1:]):
        code[a * LINE : a * LINE + 5] = JUMP + (b * LINE - (a * LINE + 5)).to_bytes(4, "little", signed=True)
    return code


def why_not():
    return "" if platform.machine() == "x86_64" else f"not measured on {platform.machine()}"


def measure():
    """[(what was called, its own microseconds, those that the step took more beside them)], medians over rounds in
    random order."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batches = [(torch.randn(4, 8), torch.randint(0, 2, (4,))) for _ in range(STEPS)]
    functions = {name: _function(_code(lines, pages)) for name, lines, pages in TRIALS}
    inside, beside = {name: [] for name in functions}, {name: [] for name in functions}
    order, now = list(functions), time.perf_counter_ns
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            call, own, rest = functions[name][1], [], []
            for x, y in batches:
                began = now()
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                before = now()
                call()
                after = now()
                optimizer.step()
                loss.item()
                own.append(after - before)
                rest.append(now() - after + before - began)
            inside[name].append(statistics.median(own))
            beside[name].append(statistics.median(rest))
    middle = {name: (statistics.median(inside[name]), statistics.median(beside[name])) for name in functions}
    own, rest = middle[TRIALS[0][0]]
    return [(name, (a - own) / 1e3, (b - rest) / 1e3) for name, (a, b) in middle.items()][1:]


def table():
    """Lines of the page."""
    out = [
        "## What the meter does not see",
        "",
        "Before `optimizer.step` of an MLP 8-8-2 a function is called that does nothing but what is "
        "said here: the microseconds that it "
        "takes, and those by which all else of the step takes longer. Our code consists of jumps to "
        "a good part, most of them run once or "
        "a few times in a step; pairs of steps with and without us see both.",
        "",
    ]
    if why_not():
        return [*out, why_not(), ""]
    out += ["| called | itself, us | the rest of the step, us |", "|---|---|---|"]
    return [*out, *(f"| {name} | {own:+.2f} | {rest:+.2f} |" for name, own, rest in measure()), ""]
