"""Further programs of tape_programs: layouts that have no place on a tape, and kernels that trust the numbers they are given."""

import warnings

import torch
from tape_programs import program, results
from torch import nn
from torch.nn import functional as F


@program("matrices in CSR, CSC and blocks, mkldnn's layout")
def _():
    dense = (torch.rand(8, 8) < 0.4).float() + torch.eye(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that layout is a beta
        csr, csc, blocks = dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))
    w, head = nn.Parameter(torch.randn(8, 3)), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([w, *head.parameters()], lr=0.1)

    def step():
        optimizer.zero_grad()
        with torch.no_grad():
            known = torch.relu(blocks @ w) + (w.to_mkldnn() * 2).to_dense()
        loss = head((csr @ w) * (csc @ w) + known).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss, {"w": w, "gradient": w.grad, **results(head, optimizer)}

    return step


# Kernels that trust the numbers they are given: a replay looks at these first, and has to find nothing wrong with true ones.
@program("CTC, pooling by indices, segments, bags, packed sequences, LU")
def _():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.FractionalMaxPool2d(2, output_size=5), nn.AdaptiveMaxPool2d(3), nn.Flatten(), nn.Linear(36, 12))
    bag, lone = nn.EmbeddingBag(9, 3, mode="max"), nn.EmbeddingBag(9, 3, mode="sum", include_last_offset=True)
    x, words, offsets = torch.randn(4, 1, 16, 16), torch.randint(0, 9, (7,)), torch.tensor([0, 2, 2, 5])
    targets, matrix = torch.tensor([1, 2, 2, 1, 3]), torch.randn(3, 3) + 3 * torch.eye(3)
    optimizer = torch.optim.Adam([*model.parameters(), *bag.parameters(), *lone.parameters()], lr=0.01)

    def step():
        optimizer.zero_grad()
        h = model(F.max_pool2d(x, 2, return_indices=True)[0])
        volume = F.max_pool3d(h.view(1, 4, 3, 2, 2), (2, 2, 1), stride=1)
        found = torch.segment_reduce(h, "max", lengths=torch.tensor([1, 3]))
        weighted = lone(words, torch.tensor([0, 2, 2, 5, 7]), per_sample_weights=h.flatten()[:7])
        packed = nn.utils.rnn.pack_padded_sequence(h.view(4, 3, 4), torch.tensor([3, 1, 2, 3]), batch_first=True, enforce_sorted=False)
        lu, pivots = torch.linalg.lu_factor(matrix + h[:3, :3])
        solved = torch.linalg.lu_solve(lu, pivots, h[:3, :2])
        ctc = F.ctc_loss(h.view(4, 3, 4).log_softmax(2), targets, (4, 4, 3), (2, 1, 2), reduction="sum")
        loss = volume.sum() + found.sum() + weighted.mean() + bag(words, offsets).sum() + packed.data.pow(2).sum() + solved.mean() + ctc
        loss.backward()
        optimizer.step()
        return loss, {**results(model, optimizer), "bag": bag.weight, "lone": lone.weight}

    return step


# torch's own functions in Python, made of aten's operators: a program without Python has none of them.
@program("prims, called directly and by torch._refs")
def _():
    import torch._refs

    prims = torch.ops.prims

    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return prims.mul(prims.convert_element_type(x, torch.float32), x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return torch._refs.mul(g, torch._refs.add(x, x))

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        with torch.no_grad():
            noise = prims.normal([5, 4], mean=0.0, std=0.1, dtype=torch.float32, device=torch.device("cpu"), requires_grad=False)
            weights = torch._refs.softmax(torch._refs.where(x > 0, x, noise), -1)
        loss = F.cross_entropy(Squared.apply(model(x * weights + noise)), y)
        loss.backward()
        optimizer.step()
        return loss, results(model, optimizer)

    return step
