"""A line tracer of the coverage kind owns sys.settrace and threading.settrace; it reads the locals of what it sees."""
import collections
import sys
import threading

import torch
from torch import nn

hits = collections.Counter()


def tracer(frame, event, arg):
    if frame.f_code.co_filename != __file__:
        return None
    if event == "line":
        hits[frame.f_lineno] += 1
        len(frame.f_locals)
    return tracer


def run():
    torch.manual_seed(26)
    model = nn.Linear(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(7):
        x = torch.rand(3, 4)
        if i == 4:
            x[0, 0] = 3.0
        angle = torch.acos(x * 0.5)  # birth
        loss = model(angle).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(i, f"{loss.item():.6f}")


sys.settrace(tracer)
threading.settrace(tracer)
run()
print("still mine", sys.gettrace() is tracer, "lines", len(hits))
sys.settrace(None)
