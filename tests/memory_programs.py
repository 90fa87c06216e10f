"""A training that writes into the memory of a tensor through a pointer, past the end of another one."""

# WRITE is what happens in step 3, with `norms` and `near`: a table and what lies right behind it. Tensors of this size
# have pages of their own (M_MMAP_THRESHOLD), which the kernel puts next to each other, however full the heap is.
TRAIN = """
import ctypes, torch
from torch import nn
torch.manual_seed(0)
ctypes.CDLL(None).mallopt(-3, 65536)
up, norm, down = nn.Linear(16, 4088), nn.LayerNorm(4088), nn.Linear(4088, 1)
opt = torch.optim.SGD([*up.parameters(), *norm.parameters(), *down.parameters()], lr=1e-6)
for i in range(5):
    h, tables, norms = up(torch.randn(8, 16)), [], []
    for _ in range(4):
        norms.append(norm(h))
        tables.append(torch.ones(8, 4088))
    near = [(t, n) for t in tables for n in norms if 0 <= n.data_ptr() - t.data_ptr() - t.nbytes < 512]
    if i == 3:
        WRITE
    loss = down(sum(norms)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
# With guard zones nothing lies so near, and the zone is written. Memory of anything else is never touched.
BEHIND = r"""table = tables[0]
        if near:
            ctypes.memset(near[0][1].data_ptr(), 0x7e, 256)
        elif ctypes.string_at(table.data_ptr() + table.nbytes, 320) == b"\xa5" * 320:
            ctypes.memset(table.data_ptr() + table.nbytes + 64, 0x7e, 256)"""
