"""The trainings that are measured: plain torch, random data that lies ready, nothing that needs a download."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Mlp(nn.Module):
    def __init__(self, sizes=(784, 512, 512, 10)):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x)


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.short = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet18(nn.Module):
    """The form for 32 x 32 images: a 3 x 3 stem without pooling, widths 64 to 512."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks, inner = [], 64
        for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Residual(inner, outer, stride), Residual(outer, outer, 1)]
            inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)), self.dropout, self.training)
        y = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + functional.dropout(y, self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, length, vocabulary=65, dropout=0.1):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        h = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Lstm(nn.Module):
    def __init__(self, width=256, vocabulary=96):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.head(self.lstm(self.token(x))[0])


class Gan(nn.Module):
    """A generator of 32 x 32 pictures and its discriminator, after DCGAN."""

    def __init__(self, noise=64, width=32):
        super().__init__()
        self.noise = noise

        def up(a, b, **more):
            return nn.ConvTranspose2d(a, b, 4, bias=False, **more), nn.BatchNorm2d(b), nn.ReLU()

        def down(a, b):
            return nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)

        self.g = nn.Sequential(
            *up(noise, 4 * width),
            *up(4 * width, 2 * width, stride=2, padding=1),
            *up(2 * width, width, stride=2, padding=1),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
            nn.Tanh(),
        )
        self.d = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            *down(width, 2 * width),
            *down(2 * width, 4 * width),
            nn.Conv2d(4 * width, 1, 4),
        )

    def losses(self, x, z):
        """Of the discriminator and of the generator, each a function without arguments."""
        fake = self.g(z[:, :, None, None])

        def says(pictures, real):
            found = self.d(pictures).flatten()
            return functional.binary_cross_entropy_with_logits(found, torch.full_like(found, real))

        return lambda: says(x, 1.0) + says(fake.detach(), 0.0), lambda: says(fake, 1.0)


def _images(shape, classes, batch):
    return lambda: (torch.randn(batch, *shape), torch.randint(classes, (batch,)))


def _tokens(batch, length, vocabulary):
    return lambda: (torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length)))


def _loss(model, x, y):
    logits = model(x)
    return functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten())


@dataclasses.dataclass
class Kind:
    make: object  # () -> module
    batch: object  # () -> (x, y)
    ready: int = 16  # batches that lie ready


# What they are called, and how many rows pass through each weight: cells.py
KINDS = {
    "tiny": Kind(lambda: Mlp((8, 8, 2)), _images((8,), 2, 8), 64),
    "mlp": Kind(Mlp, _images((784,), 10, 64)),
    "lstm": Kind(Lstm, _tokens(16, 32, 96)),
    "gpt-toy": Kind(lambda: Gpt(4, 128, 4, 64), _tokens(8, 64, 65)),
    "resnet18": Kind(ResNet18, _images((3, 32, 32), 10, 16)),
    "gan": Kind(Gan, lambda: (torch.rand(32, 1, 32, 32), torch.randn(32, 64))),
    "gpt-small": Kind(lambda: Gpt(6, 384, 6, 256), _tokens(4, 256, 65)),
}

# (parameters) -> optimizer; does the loop clip the gradient norm
OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True), False),
    "adamw-fused": (lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True), False),
    "sgd": (lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9), False),
    "adamw-clip": (lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True), True),
}


class Job:
    """A model with its optimizer and batches. loader: a DataLoader over batches that lie ready; else the list
    itself."""

    def __init__(self, kind, optimizer, loader=True, half=False):
        torch.manual_seed(0)
        self.kind = KINDS[kind]
        self.model = self.kind.make()
        if half:
            self.model.to(torch.bfloat16)
        self.parameters = list(self.model.parameters())
        make, self.clips = OPTIMIZERS[optimizer]
        self.second = None
        if kind == "gan":  # the discriminator's steps follow the generator's, and these those
            self.second, self.parameters = make(self.model.d.parameters()), list(self.model.g.parameters())
        self.optimizer = make(self.parameters)
        ready = [self.kind.batch() for _ in range(self.kind.ready)]
        if half:
            ready = [(x.to(torch.bfloat16) if x.is_floating_point() else x, y) for x, y in ready]
        self.batches = DataLoader(ready, batch_size=None, shuffle=True) if loader else ready
        self.loss_of = _loss

    def gradient_bytes(self):
        return sum(p.numel() * p.element_size() for p in self.model.parameters())
