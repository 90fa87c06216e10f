"""Trainings that are well: noisy, spiky, warmed up, decayed, adversarial. None of them deserves a warning. A training is
a generator function; it yields after each step."""

import math

import torch
from torch import nn

from .failing import _images, _Recurrent, _train, _Transformer, language_loss, tokens_of
from .parts import batches, classes, mlp, regression

F = nn.functional
HEALTHY = {}
STEPS = 1500


def healthy(function):
    HEALTHY[function.__name__] = function
    return function


def _scheduled(opt, factor):
    base = [group["lr"] for group in opt.param_groups]

    def before(i):
        for group, rate in zip(opt.param_groups, base):
            group["lr"] = rate * factor(i)

    return before


@healthy
def regression_with_noise():
    model, data = mlp(16, 32, 1), batches(16, 16)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    return _train(model, opt, lambda i: F.mse_loss(model((b := next(data))[0]), b[1]), STEPS)


@healthy
def warm_up_and_cosine():
    x, y = classes(512, 16)
    model = mlp(16, 64, 4)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rate = _scheduled(opt, lambda i: min(1, (i + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * i / STEPS)))

    def loss(i):
        at = torch.randint(0, 512, (32,))
        return F.cross_entropy(model(x[at]), y[at])

    return _train(model, opt, loss, STEPS, rate)


@healthy
def warm_up_from_nearly_nothing():
    x, y = classes(512, 16)
    model = mlp(16, 64, 64, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    rate = _scheduled(opt, lambda i: min(1.0, 1e-6 * 1.03**i))
    return _train(model, opt, lambda i: F.cross_entropy(model(x), y), STEPS, rate)


@healthy
def step_decay():
    model, data = mlp(16, 32, 1), batches(32, 16)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return _train(
        model,
        opt,
        lambda i: F.mse_loss(model((b := next(data))[0]), b[1]),
        STEPS,
        _scheduled(opt, lambda i: 0.1 ** (i // 500)),
    )


@healthy
def curriculum():
    model, data = mlp(16, 32, 1), batches(64, 16)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(i):
        x, y = next(data)
        return F.mse_loss(model(x), y + (i // 300) * torch.sin(3 * x[:, :1]))

    return _train(model, opt, loss, STEPS)


@healthy
def batch_size_changes():
    model = mlp(16, 32, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(i):
        x, y = regression(4 if i < 500 else 256 if i < 1000 else 16, 16)
        return F.mse_loss(model(x), y)

    return _train(model, opt, loss, STEPS)


@healthy
def outlier_batches():
    model, data = mlp(16, 32, 1), batches(32, 16)
    opt = torch.optim.SGD(model.parameters(), lr=3e-3)

    def loss(i):
        x, y = next(data)
        return F.mse_loss(model(x), y * (30 if torch.rand(()) < 0.01 else 1))

    def clipped():
        for i in range(STEPS):
            value = loss(i)
            opt.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            yield value

    return clipped()


@healthy
def overfits_to_nothing():
    x, y = regression(16, 32)
    model = mlp(32, 64, 1)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return _train(model, opt, lambda i: F.mse_loss(model(x), y), STEPS)


@healthy
def convolution():
    x, y = _images(256)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss(i):
        at = torch.randint(0, 256, (32,))
        return F.cross_entropy(model(x[at]), y[at])

    return _train(model, opt, loss, STEPS)


@healthy
def convolution_with_batch_norm():
    x, y = _images(256)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(i):
        at = torch.randint(0, 256, (16,))
        return F.cross_entropy(model(x[at]), y[at])

    return _train(model, opt, loss, STEPS, _scheduled(opt, lambda i: 0.1 ** (i // 700)))


@healthy
def lstm_with_clipping():
    model = _Recurrent(nn.LSTM(4, 16, batch_first=True))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS // 2):
        x = torch.randn(32, 12, 4)
        value = F.mse_loss(model(x), x.sum((1, 2)).unsqueeze(1))
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        yield value


@healthy
def gru_adds():
    model = _Recurrent(nn.GRU(2, 16, batch_first=True))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(i):
        x = torch.rand(32, 10, 2)
        return F.mse_loss(model(x), x[:, :2, 0].sum(1, keepdim=True))

    return _train(model, opt, loss, STEPS // 2)


@healthy
def language_model():
    model = _Transformer()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return _train(model, opt, lambda i: language_loss(model, tokens_of()), STEPS // 2)


@healthy
def deep_transformer_with_warm_up():
    model = _Transformer(layers=4)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return _train(
        model,
        opt,
        lambda i: language_loss(model, tokens_of()),
        STEPS // 2,
        _scheduled(opt, lambda i: min(1, (i + 1) / 200)),
    )


@healthy
def residual_branches_begin_at_zero():
    class ReZero(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
            self.scale = nn.Parameter(torch.zeros(8))
            self.head = nn.Linear(16, 4)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            for layer, scale in zip(self.layers, self.scale):
                x = x + scale * layer(x).relu()
            return self.head(x)

    x, y = classes(512, 16)
    model = ReZero()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def loss(i):
        at = torch.randint(0, 512, (32,))
        return F.cross_entropy(model(x[at]), y[at])

    return _train(model, opt, loss, STEPS)


@healthy
def diffusion():
    model = mlp(3, 64, 64, 2)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss(i):
        clean = torch.randn(64, 2) * 0.3 + torch.randint(0, 2, (64, 1)) * 2.0
        t = torch.rand(64, 1)
        noise = torch.randn_like(clean)
        return F.mse_loss(model(torch.cat([clean * (1 - t) + noise * t, t], 1)), noise)

    return _train(model, opt, loss, STEPS)


@healthy
def diffusion_weighted_by_signal_to_noise():
    model = mlp(3, 64, 2)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(i):
        clean, t = torch.randn(32, 2), torch.rand(32, 1)
        noise = torch.randn_like(clean)
        weight = ((1 - t) / t.clamp(min=1e-3)).pow(2).clamp(max=1e3)
        return (weight * (model(torch.cat([clean * (1 - t) + noise * t, t], 1)) - noise).pow(2)).mean()

    return _train(model, opt, loss, STEPS)


def _adversarial(loss_of_judge, loss_of_maker, steps, judge_rate=1e-3):
    make, judge = mlp(4, 32, 2), mlp(2, 32, 1)
    opt_g = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(judge.parameters(), lr=judge_rate, betas=(0.5, 0.9))
    for _ in range(steps):
        real, fake = torch.randn(64, 2) * 0.2 + 2, make(torch.randn(64, 4))
        value = loss_of_judge(judge, real, fake.detach())
        opt_d.zero_grad()
        value.backward()
        opt_d.step()
        value = loss_of_maker(judge, fake)
        opt_g.zero_grad()
        value.backward()
        opt_g.step()
        yield value


@healthy
def adversarial():
    return _adversarial(
        lambda judge, real, fake: F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean(),
        lambda judge, fake: F.softplus(-judge(fake)).mean(),
        STEPS,
    )


@healthy
def adversarial_with_gradient_penalty():
    def judged(judge, real, fake):
        between = (real + torch.rand(64, 1) * (fake - real)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).pow(2).mean()

    return _adversarial(judged, lambda judge, fake: -judge(fake).mean(), STEPS // 2)


@healthy
def policy_gradient():
    policy = mlp(2, 32, 2)
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def loss(i):
        state = torch.randn(64, 2)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        reward = (action == (state[:, 0] > 0)).float() * 10
        return -(choice.log_prob(action) * (reward - reward.mean())).mean()

    return _train(policy, opt, loss, STEPS)


@healthy
def values_of_a_growing_horizon():
    """A critic whose targets grow a hundredfold while the policy improves, and level off."""
    value = mlp(4, 32, 1)
    opt = torch.optim.Adam(value.parameters(), lr=1e-3)

    def loss(i):
        state = torch.randn(64, 4)
        target = state.sum(1, keepdim=True) * (1 + 10 / (1 + math.exp(-(i - 500) / 80)))
        return F.mse_loss(value(state), target)

    return _train(value, opt, loss, STEPS)


@healthy
def bfloat16_autocast():
    x, y = classes(512, 16)
    model = mlp(16, 64, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(i):
        at = torch.randint(0, 512, (32,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x[at]), y[at])

    return _train(model, opt, loss, STEPS)


@healthy
def annealed_prior():
    """A variational autoencoder whose second term comes in slowly, which raises its loss."""
    encode, decode = mlp(8, 32, 4), mlp(2, 32, 8)
    opt = torch.optim.Adam([*encode.parameters(), *decode.parameters()], lr=2e-3)
    data = torch.randn(512, 2) @ torch.randn(2, 8)

    def loss(i):
        x = data[torch.randint(0, 512, (64,))]
        mean, log_variance = encode(x).chunk(2, 1)
        out = decode(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        divergence = 0.5 * (mean.pow(2) + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.mse_loss(out, x) + min(1.0, i / 800) * divergence

    return _train(encode, opt, loss, STEPS)


@healthy
def contrastive_with_learned_temperature():
    left, right = mlp(8, 32, 8), mlp(8, 32, 8)
    scale = nn.Parameter(torch.tensor(2.0))
    opt = torch.optim.Adam([*left.parameters(), *right.parameters(), scale], lr=2e-3)

    def loss(i):
        x = torch.randn(32, 8)
        a = F.normalize(left(x + 0.1 * torch.randn_like(x)), dim=1)
        b = F.normalize(right(x + 0.1 * torch.randn_like(x)), dim=1)
        return F.cross_entropy(a @ b.T * scale.exp(), torch.arange(32))

    return _train(left, opt, loss, STEPS)
