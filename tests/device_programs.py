"""Programs that train on the make-believe device, and optimizers for them."""

from device_support import ON_DEVICE
from helpers import run

FUSED = {
    "AdamW": "torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)",
    "Adam amsgrad": "torch.optim.Adam(model.parameters(), lr=0.05, amsgrad=True, fused=True)",
    "SGD": "torch.optim.SGD(model.parameters(), lr=0.05, fused=True)",
    "SGD momentum": "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)",
    "Adagrad": "torch.optim.Adagrad(model.parameters(), lr=0.05, fused=True)",
}
OTHERS = {
    "AdamW foreach": "torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)",
    "RMSprop": "torch.optim.RMSprop(model.parameters(), lr=0.01)",
    "a subclass": "type('Mine', (torch.optim.AdamW,), {})(model.parameters(), lr=0.05, fused=True)",
}


def on_device(library, folder, body, *options):
    return run(folder, ON_DEVICE.format(library=library) + body, *(options or ("--on-alarm", "skip")))


STEPS = """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
before = None
for i, x in enumerate(batches):
    loss = loss_of(x) * (NAN if i == BAD_LOSS else 1.0)
    opt.zero_grad()
    loss.backward()
    if i == BAD_GRADIENT:
        model[0].weight.grad[0, 0] = INF
        before = bits(opt)
    try:
        opt.step()
    except Exception as e:
        print("raised at", i, type(e).__name__, bits(opt) == before)
        raise SystemExit(7)
    if i == BAD_GRADIENT:
        print("left out", bits(opt) == before)
print("flag", "found_inf" in opt.__dict__)
"""


def steps(gradient=-1, loss=-1):
    return STEPS.replace("BAD_GRADIENT", str(gradient)).replace("BAD_LOSS", str(loss))


TWO_CLIPS = """
opt = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
for i, x in enumerate(batches):
    opt.zero_grad()
    bad = torch.tensor(NAN if i == 4 else 0.0, requires_grad=True)
    torch.autograd.backward([loss_of(x), bad])
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(model[2].parameters(), 1.0)
    before = bits(opt)
    opt.step()
    if bits(opt) == before:
        print("left out", i)
"""
