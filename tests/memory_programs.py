"""A training that writes into the memory of a tensor through a pointer, past the end of another one."""

# WRITE is what happens in step 3, with `made`: pairs of a table and a tensor that was made right after it.
TRAIN = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
up, norm, down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 1)
opt = torch.optim.SGD([*up.parameters(), *norm.parameters(), *down.parameters()], lr=1e-4)
for i in range(5):
    h = up(torch.randn(8, 16))
    made = []
    for _ in range(40):
        table = torch.ones(8, 64)
        made.append((table, norm(h)))
    if i == 3:
        WRITE
    loss = down(sum(m[1] for m in made)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
# Where memory lies differs from run to run. With guard zones there is no such neighbour, and the zone is written.
BEHIND = """gaps = [(g.data_ptr() - t.data_ptr(), n) for n, (t, _) in enumerate(made) for _, g in made]
        gap, n = min(one for one in gaps if one[0] >= 2048)
        ctypes.memset(made[n][0].data_ptr() + (gap if gap < 2560 else 2112), 0x7e, 256)"""
