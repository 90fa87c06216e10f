"""Small programs of one training step each, recorded on a tape and replayed: tests/rerun/test_tape.py and the table in docs.

A program returns (loss, {name: tensor that has to come out again}). It runs once without being recorded, so that what torch
does only once is not on the tape.
"""

import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

PROGRAMS = {}


def program(name):
    def add(make):
        PROGRAMS[name] = make
        return make

    return add


def results(model, optimizer=None, **more):
    """Gradients, and after the step parameters, buffers and the optimizer's state."""
    found = {f"gradient {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    found.update({f"buffer {n}": b for n, b in model.named_buffers()})
    if optimizer is not None:
        found.update({f"parameter {n}": p for n, p in model.named_parameters()})
        for i, state in enumerate(optimizer.state.values()):
            found.update({f"state {i} {k}": v for k, v in state.items() if isinstance(v, torch.Tensor)})
    return {**found, **more}


def trained(model, optimizer, loss_of, clip=False):
    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss, results(model, optimizer)

    return step


def mlp(width=32):
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))


@program("MLP, SGD with momentum")
def _():
    model = mlp()
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return trained(model, optimizer, lambda: F.mse_loss(model(x), y))


@program("CNN with BatchNorm and dropout, Adam")
def _():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 8, 3, stride=2),
                          nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(5))
    x, y = torch.randn(4, 3, 14, 14), torch.randint(5, (4,))
    model(x)
    return trained(model, torch.optim.Adam(model.parameters()), lambda: F.cross_entropy(model(x), y))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self, how=None, width=32):
        super().__init__()
        self.how = how
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x) if self.how is None else checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)


def gpt_step(optimizer=torch.optim.AdamW, how=None, autocast=False, **options):
    model = Gpt(how)
    ids = torch.randint(50, (2, 17))

    def loss_of():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(ids[:, :-1])
            return F.cross_entropy(logits.reshape(-1, 50), ids[:, 1:].reshape(-1))

    return trained(model, optimizer(model.parameters(), **options), loss_of, clip=True)


@program("transformer with SDPA, clipping, AdamW foreach")
def _():
    return gpt_step(foreach=True)


@program("transformer with SDPA, clipping, AdamW fused")
def _():
    return gpt_step(fused=True)


@program("transformer with SDPA, clipping, AdamW for-loop")
def _():
    return gpt_step(foreach=False)


@program("transformer under autocast to bfloat16")
def _():
    return gpt_step(autocast=True)


@program("checkpoint, not re-entrant")
def _():
    return gpt_step(how="not re-entrant")


@program("checkpoint, re-entrant")
def _():
    return gpt_step(how="reentrant")


@program("embedding bag and cross-entropy, Adagrad")
def _():
    model = nn.Sequential(nn.EmbeddingBag(30, 8), nn.Linear(8, 5))
    x, y = torch.randint(30, (6, 4)), torch.randint(5, (6,))
    return trained(model, torch.optim.Adagrad(model.parameters()), lambda: F.cross_entropy(model(x), y))


@program("LSTM of two layers with dropout, RMSprop")
def _():
    model = nn.ModuleDict({"rnn": nn.LSTM(6, 12, 2, dropout=0.3, batch_first=True), "head": nn.Linear(12, 3)})
    x, y = torch.randn(4, 7, 6), torch.randint(3, (4,))
    return trained(model, torch.optim.RMSprop(model.parameters()),
                   lambda: F.cross_entropy(model["head"](model["rnn"](x)[0][:, -1]), y))


@program("packed GRU, Adadelta")
def _():
    model = nn.ModuleDict({"rnn": nn.GRU(6, 8), "head": nn.Linear(8, 1)})
    x, lengths = torch.randn(9, 4, 6), torch.tensor([9, 7, 4, 2])

    def loss_of():
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        out, _ = nn.utils.rnn.pad_packed_sequence(model["rnn"](packed)[0])
        return model["head"](out).pow(2).mean()

    return trained(model, torch.optim.Adadelta(model.parameters()), loss_of)


@program("custom autograd Function")
def _():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x * x

    model = mlp()
    x = torch.randn(8, 16)
    return trained(model, torch.optim.NAdam(model.parameters()), lambda: Cube.apply(model(x)).abs().mean())


@program("GradScaler with float16 losses")
def _():
    model = mlp()
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss, results(model, optimizer)

    return step


@program("accumulation over two micro-batches")
def _():
    model = mlp()
    batches = [torch.randn(8, 16) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=False)
        for x in batches:
            loss = model(x).pow(2).mean() / 2
            loss.backward()
        optimizer.step()
        return loss, results(model, optimizer)

    return step


@program("gradient penalty (double backward)")
def _():
    model = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))
    real, fake = torch.randn(8, 6), torch.randn(8, 6)

    def loss_of():
        at = torch.lerp(real, fake, torch.rand(8, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
        return model(fake).mean() - model(real).mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean()

    return trained(model, torch.optim.Adam(model.parameters(), betas=(0.5, 0.9)), loss_of)


@program("FFT and a complex parameter")
def _():
    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight.conj(), n=16)

    model = Filter()
    x = torch.randn(4, 16)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.01), lambda: model(x).pow(2).sum())


@program("saved-tensor hooks")
def _():
    model = mlp()
    x = torch.randn(8, 16)

    def loss_of():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            return torch.tanh(model(x)).pow(2).mean()

    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)


@program("torch.func: vmap of grad")
def _():
    weight, x = torch.randn(5), torch.randn(7, 5)

    def step():
        per_sample = torch.func.vmap(torch.func.grad(lambda w, x: torch.tanh(w @ x)), (None, 0))(weight, x)
        loss = per_sample.pow(2).mean()
        return loss, {"per sample": per_sample}

    return step


@program("weight norm, spectral norm and an EMA")
def _():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(),
                          nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)))
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    ema.update_parameters(model)
    x = torch.randn(5, 6)
    optimizer = torch.optim.Adamax(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        return loss, results(model, optimizer, **{f"ema {n}": p for n, p in ema.named_parameters()})

    return step


@program("sparse gradients, SparseAdam")
def _():
    model = nn.Embedding(40, 6, sparse=True)
    ids = torch.tensor([[1, 2, 2], [7, 1, 9]])
    return trained(model, torch.optim.SparseAdam(model.parameters()), lambda: model(ids).pow(2).sum())


@program("sort, topk, nonzero, item, boolean masks, einsum, out=")
def _():
    weight = nn.Parameter(torch.randn(6, 6))

    def step():
        weight.grad = None
        values = weight.sort(0).values.topk(3, 1).values
        positive = weight[weight > 0]
        rows = torch.nonzero(weight.sum(1) > -2).squeeze(1)
        scale = weight.abs().max().item()
        buffer = torch.zeros(6, 6)
        buffer[1:3] = weight.detach()[1:3] * 2
        total = torch.empty(0)
        with torch.no_grad():
            torch.add(buffer, 1.5, out=total)
        table = torch.tensor([1.0, 2.0, 3.0])
        loss = (torch.einsum("ij,j->i", values, table).sum() + positive.sum() / scale + weight[rows].pow(2).mean()
                + (weight * total).sum())
        loss.backward()
        return loss, {"gradient": weight.grad, "buffer": buffer}

    return step


@program("generators of its own")
def _():
    weight = nn.Parameter(torch.randn(5))
    own, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)

    def step():
        weight.grad = None
        torch.manual_seed(11)
        noise = torch.randn(5, generator=own) + torch.rand(5, generator=other) + torch.randn(5)
        own.manual_seed(5)
        loss = ((weight + noise + torch.randn(5, generator=own)) ** 2).sum()
        loss.backward()
        return loss, {"gradient": weight.grad}

    return step


@program("memory that numpy writes")
def _():
    weight = nn.Parameter(torch.randn(4))

    def step():
        weight.grad = None
        slot = torch.empty(4)
        slot.numpy()[:] = [1, 2, 3, 4]
        first = (weight * slot).sum()
        slot.numpy()[:] = [5, 6, 7, 8]
        loss = first * (weight * slot).sum()
        loss.backward()
        return loss, {"gradient": weight.grad}

    return step


@program("inference mode, float64 and float16")
def _():
    teacher, student = mlp().double(), mlp()
    x = torch.randn(8, 16)

    def loss_of():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            wanted = F.linear(x, torch.ones(4, 16)).float().clone()
        with torch.inference_mode():
            soft = teacher(x.double()).half().float()
        return F.mse_loss(student(x), wanted.clone() + soft.clone())

    return trained(student, torch.optim.SGD(student.parameters(), lr=0.1), loss_of)


@program("group and instance norm, attention module, transposed convolution, SVD")
def _():
    model = nn.ModuleDict({"up": nn.ConvTranspose2d(2, 4, 3), "group": nn.GroupNorm(2, 4), "instance": nn.InstanceNorm2d(4),
                           "attend": nn.MultiheadAttention(8, 2, batch_first=True)})
    x = torch.randn(2, 2, 6, 6)

    def loss_of():
        y = model["instance"](model["group"](model["up"](x)))
        z, _ = model["attend"](*[y.flatten(1)[:, :64].view(2, 8, 8)] * 3)
        return torch.linalg.svdvals(z).sum() + y.pow(2).mean()

    return trained(model, torch.optim.RAdam(model.parameters()), loss_of)


@program("log of an exact zero")
def _():
    weight = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

    def step():
        weight.grad = None
        loss = (weight * torch.log(weight)).sum()
        loss.backward()
        return loss, {"gradient": weight.grad}

    return step


@program("MLP, LBFGS with its closure")
def _():
    model = mlp(8)
    x = torch.randn(8, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def step():
        losses = []

        def closure():
            optimizer.zero_grad()
            losses.append(model(x).pow(2).mean())
            losses[-1].backward()
            return losses[-1]

        optimizer.step(closure)
        return losses[-1], results(model)

    return step


def record(native, name, seed=0):
    """(bytes of the tape, {outcome: is on the tape}, loss) of that program's second step."""
    torch.manual_seed(seed)
    step = PROGRAMS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step()
        native.tape_start()
        try:
            loss, found = step()
        finally:
            native.tape_stop()
    seen = {"loss": native.tape_outcome("loss", "loss", loss)}
    seen.update({key: native.tape_outcome("value", key, tensor.detach()) for key, tensor in found.items()})
    return native.tape_take(), seen, loss


import tape_programs_rare  # noqa: E402, F401  adds its own
