"""What a copy for --rollback-every costs, and with which N that is 1 % of the time: `python bench/rollback/cost.py
[cpu|cuda]`. Prints milliseconds of a step, of a copy and of the look at it, each the median, and the smallest N."""

import statistics
import sys
import time

import torch

import finitude
from finitude.program import state_copy


def timed(call, device):
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def main(device, layers, width, batch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(layers))
    ).to(device)
    opt = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch, 128, width, device=device)

    def step():
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        opt.step()

    with finitude.watch(model, opt, quiet=True):
        step()
        steps = [timed(step, device) for _ in range(15)]
        copies, looks, spare = [], [], None
        for _ in range(9):
            copy = state_copy.StateCopy(spare)
            copies.append(timed(lambda: copy.take([opt]), device))  # noqa: B023  called at once
            looks.append(timed(copy.is_sound, device))
            spare = copy
        back = timed(lambda: copy.put_back(1.0), device)
        size = state_copy.size([opt]) >> 20
    step_ms, copy_ms, look_ms = (statistics.median(v[2:]) for v in (steps, copies, looks))
    least = (copy_ms + look_ms) / (0.01 * step_ms)
    print(
        f"{device}: state {size} MB, step {step_ms:.1f} ms, copy {copy_ms:.1f} ms (first {copies[0]:.1f}), "
        f"look {look_ms:.1f} ms, put back {back:.1f} ms; 1 % of the time from --rollback-every {int(least) + 1} on"
    )


if __name__ == "__main__":
    on = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    main(on, *((4, 256, 8) if on == "cpu" else (12, 1024, 16)))
