"""Trainings that fail slowly: each grows until a value is not finite. A training is a generator function; it yields after
each step. `right` names the parameters whose gradients the failure begins at; "" where it is in all of them alike."""

import torch
from torch import nn

from .parts import batches, classes, mlp, regression

F = nn.functional
FAILING = {}


def failing(right=""):
    def add(function):
        FAILING[function.__name__] = (function, right)
        return function

    return add


def _train(model, opt, loss_of, steps, before=lambda i: None):
    for i in range(steps):
        before(i)
        loss = loss_of(i)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss


def _linear_sgd(lr, momentum=0.0, steps=3000):
    x, y = regression(256, 8)
    model = nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return _train(model, opt, lambda i: F.mse_loss(model(x), y), steps)


@failing()
def rate_just_too_high():
    return _linear_sgd(0.9)


@failing()
def momentum_too_high():
    return _linear_sgd(2.2, 0.5)


@failing()
def warm_up_too_far():
    x, y = regression(256, 8)
    model = mlp(8, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)

    def warm(i):
        opt.param_groups[0]["lr"] = 1e-3 * 1.01**i

    return _train(model, opt, lambda i: F.mse_loss(model(x), y), 3000, warm)


@failing()
def inputs_drift():
    model = mlp(16, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    data = batches(64, 16)

    def loss(i):
        x, y = next(data)
        return F.mse_loss(model(x * 1.08 ** max(0, i - 200)), y)

    return _train(model, opt, loss, 4000)


@failing()
def loss_weight_grows():
    model = mlp(16, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    data = batches(64, 16)

    def loss(i):
        x, y = next(data)
        return F.mse_loss(model(x), y) * 1.15 ** max(0, i - 100)

    return _train(model, opt, loss, 2000)


@failing()
def labels_drift():
    model = mlp(16, 32, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = batches(64, 16)

    def loss(i):
        x, y = next(data)
        return F.mse_loss(model(x), y * 1.05 ** max(0, i - 300))

    return _train(model, opt, loss, 4000)


def _images(n=128):
    x = torch.randn(n, 1, 8, 8)
    return x, (x.mean((1, 2, 3)) > 0).long()


@failing("0")
def first_convolution_grows():
    x, y = _images()
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.0)

    def grow(i):
        with torch.no_grad():
            model[0].weight.mul_(1.01)

    return _train(model, opt, lambda i: F.mse_loss(model(x)[:, 0], y.float()), 6000, grow)


@failing()
def convolution_rate():
    x, y = _images()
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)

    def warm(i):
        opt.param_groups[0]["lr"] = min(0.02 * 1.02**i, 2.0)

    return _train(model, opt, lambda i: F.mse_loss(model(x)[:, 0], y.float()), 3000, warm)


class _Recurrent(nn.Module):
    def __init__(self, cell, nonlinearity=None):
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@failing("cell")
def recurrent_weights_grow():
    x = torch.randn(64, 12, 4)
    y = x.sum((1, 2)).unsqueeze(1)
    model = _Recurrent(nn.RNN(4, 16, nonlinearity="relu", batch_first=True))
    opt = torch.optim.SGD(
        [{"params": model.cell.parameters(), "weight_decay": -20.0}, {"params": model.head.parameters()}], lr=1e-4
    )
    return _train(model, opt, lambda i: F.mse_loss(model(x), y), 8000)


@failing()
def lstm_head_rate():
    x = torch.randn(64, 12, 4)
    y = x.sum((1, 2)).unsqueeze(1)
    model = _Recurrent(nn.LSTM(4, 16, batch_first=True))
    opt = torch.optim.SGD(
        [{"params": model.cell.parameters(), "lr": 1e-3}, {"params": model.head.parameters()}], lr=0.01
    )

    def warm(i):
        opt.param_groups[1]["lr"] = 0.01 * 1.01**i

    return _train(model, opt, lambda i: F.mse_loss(model(x), y), 6000, warm)


@failing()
def state_is_carried_over():
    model = nn.Linear(16, 16)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        model.weight.copy_(torch.eye(16) * 1.03)
    state = torch.randn(8, 16)
    for _ in range(4000):
        out = model(state)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = out.detach()
        yield loss


class _Block(nn.Module):
    def __init__(self, width=16, norm=True):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1 = nn.LayerNorm(width) if norm else nn.Identity()
        self.norm2 = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.o(F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class _Transformer(nn.Module):
    def __init__(self, vocabulary=16, width=16, layers=2, norm=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(_Block(width, norm) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def tokens_of(n=32, length=12):
    start = torch.randint(0, 16, (n, 1))
    return (start + torch.arange(length) * (1 + start % 3)) % 16


def language_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@failing("blocks.1.down")
def one_projection_grows():
    model = _Transformer()
    grown = list(model.blocks[1].down.parameters())
    rest = [p for p in model.parameters() if all(p is not q for q in grown)]
    opt = torch.optim.SGD([{"params": rest}, {"params": grown, "weight_decay": -1.0}], lr=0.03)
    return _train(model, opt, lambda i: language_loss(model, tokens_of()), 6000)


@failing()
def transformer_without_norm():
    model = _Transformer(norm=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def warm(i):
        opt.param_groups[0]["lr"] = 0.01 * 1.01**i

    return _train(model, opt, lambda i: language_loss(model, tokens_of()), 4000, warm)


@failing()
def average_with_the_wrong_factor():
    x, y = regression(256, 8)
    model, average = mlp(8, 32, 1), mlp(8, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4000):
        loss = F.mse_loss(model(x), y) + 1e-3 * sum(
            (p - q.detach()).pow(2).sum() for p, q in zip(model.parameters(), average.parameters())
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), average.parameters()):
                q.mul_(1.01).add_(p, alpha=0.01)
        yield loss


@failing()
def diffusion_weight_explodes():
    model = mlp(3, 64, 2)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(i):
        clean = torch.randn(128, 2)
        t = torch.rand(128, 1)
        noise = torch.randn_like(clean)
        weight = 1 / (1 - t.clamp(max=0.99)) * 1.03 ** max(0, i - 150)
        out = model(torch.cat([clean * (1 - t) + noise * t, t], 1))
        return (weight * (out - noise).pow(2)).mean()

    return _train(model, opt, loss, 3000)


@failing()
def critic_without_bound():
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(critic.parameters(), lr=0.05)

    def loss(i):
        return critic(torch.randn(128, 2)).mean() - critic(torch.randn(128, 2) + 2).mean()

    return _train(critic, opt, loss, 4000)


@failing()
def generator_rate():
    make, judge = nn.Linear(4, 2), nn.Linear(2, 1, bias=False)
    opt_g = torch.optim.SGD(make.parameters(), lr=0.8)
    opt_d = torch.optim.SGD(judge.parameters(), lr=0.8)
    for _ in range(4000):
        real, fake = torch.randn(64, 2) + 1, make(torch.randn(64, 4))
        loss_d = (judge(fake.detach()) - judge(real)).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = -judge(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        yield loss_g


@failing()
def values_bootstrap():
    """Off-policy temporal differences with function approximation: the values chase themselves."""
    value = nn.Linear(2, 1, bias=False)
    opt = torch.optim.SGD(value.parameters(), lr=0.02)
    now, later = torch.tensor([[1.0, 0.5]]), torch.tensor([[2.0, 1.0]])

    def loss(i):
        return F.mse_loss(value(now), 0.99 * value(later).detach())

    return _train(value, opt, loss, 6000)


@failing()
def returns_grow():
    policy = mlp(4, 32, 3)
    opt = torch.optim.SGD(policy.parameters(), lr=1e-6)

    def loss(i):
        state = torch.randn(64, 4)
        chosen = torch.randint(0, 3, (64,))
        returns = torch.rand(64) * 1.04 ** max(0, i - 200)
        return (F.cross_entropy(policy(state), chosen, reduction="none") * returns).mean()

    return _train(policy, opt, loss, 4000)


@failing()
def half_precision_grows():
    x, y = regression(64, 8)
    model = mlp(8, 32, 1).bfloat16()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)

    def warm(i):
        opt.param_groups[0]["lr"] = 1e-3 * 1.02**i

    return _train(model, opt, lambda i: F.mse_loss(model(x.bfloat16()), y.bfloat16()), 3000, warm)


@failing()
def running_variance_decays():
    model, data = mlp(16, 32, 1), batches(64, 16)
    opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    variance = torch.ones(16)

    def loss(i):
        x, y = next(data)
        variance.mul_(0.97 if i > 150 else 1.0)  # it is never updated
        return F.mse_loss(model(x / variance.sqrt()), y)

    return _train(model, opt, loss, 4000)


@failing()
def weight_decay_of_wrong_sign():
    x, y = regression(256, 8)
    model = mlp(8, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    opt.param_groups[0]["weight_decay"] = -4.0
    return _train(model, opt, lambda i: F.mse_loss(model(x), y), 8000)


@failing("table")
def embedding_of_a_frequent_word():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(32, 8), nn.Linear(8, 1)

        def forward(self, words):
            return self.head(self.table(words).sum(1))

    model = Words()
    opt = torch.optim.SGD(
        [{"params": model.table.parameters(), "lr": 0.01}, {"params": model.head.parameters()}], lr=0.01
    )

    def warm(i):
        opt.param_groups[0]["lr"] = 0.01 * 1.01**i

    def loss(i):
        words = torch.zeros(32, 6, dtype=torch.long)
        words[:, 3:] = torch.randint(0, 32, (32, 3))
        return F.mse_loss(model(words), words.float().mean(1, keepdim=True))

    return _train(model, opt, loss, 4000, warm)


@failing()
def adam_divides_by_its_past():
    x, y = regression(256, 8)
    model = nn.Linear(8, 1)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def warm(i):
        opt.param_groups[0]["lr"] = 1e-3 * 1.02**i

    return _train(model, opt, lambda i: F.mse_loss(model(x), y), 8000, warm)
