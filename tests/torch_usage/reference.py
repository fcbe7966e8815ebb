"""One small model twice: with a head of tapas, and dense in plain PyTorch."""

import torch
from torch import nn

import tapas

B, C, D = 6, 23, 5


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=tapas.rng.stream(0, name))


def batch(number=0, size=B):
    """Inputs (B, D) and targets (B,), some of them repeated."""
    generator = tapas.rng.stream(0, "batch", number)
    x = torch.randn(size, D, generator=generator)
    return x, torch.randint(C // 2, (size,), generator=generator)


def layer(name="layer"):
    linear = nn.utils.skip_init(nn.Linear, D, D)  # without torch's global random state
    with torch.no_grad():
        linear.weight.copy_(draw(D, D, name=f"{name} weight"))
        linear.bias.copy_(draw(D, name=f"{name} bias"))
    return linear


def head_of(row_optimizer=None, kind=tapas.TapasSoftmax, **options):
    """A head whose candidates are all classes, so that its loss is cross_entropy."""
    sizes = {"num_samples": C} if kind is tapas.TapasSoftmax else {}
    bias = draw(C, name="bias")
    return kind(C, D, **sizes, bias=bias, row_optimizer=row_optimizer, **options)


class Model(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.encoder = layer()
        self.head = head_of() if head is None else head

    def forward(self, x, target):
        return self.head(torch.tanh(self.encoder(x)), target)

    def rows(self):
        return self.head.table.weight.clone(), self.head.table.bias.clone()


class Dense(nn.Module):
    """The same model with rows as parameters."""

    def __init__(self, like=None):
        super().__init__()
        table = (like or Model()).head.table
        self.encoder = layer()
        self.weight = nn.Parameter(table.weight.clone())
        self.bias = nn.Parameter(table.bias.clone())

    def forward(self, x, target):
        logits = torch.tanh(self.encoder(x)) @ self.weight.t() + self.bias
        return nn.functional.cross_entropy(logits, target)

    def rows(self):
        return self.weight.detach().clone(), self.bias.detach().clone()


def train(model, optimizer, numbers=range(3)):
    """Train one step for each batch; returns the losses."""
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = model(*batch(number))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def same(ours, dense, **close):
    """Whether rows, biases and encoders of two models are equal."""
    for got, want in zip(ours.rows(), dense.rows(), strict=True):
        torch.testing.assert_close(got, want, **close)
    for got, want in zip(ours.encoder.parameters(), dense.encoder.parameters(), strict=True):
        torch.testing.assert_close(got, want, **close)
