"""A proposal and a second-pass rule of your own, plugged into TapasSoftmax.

    python examples/own_rule_and_proposal.py

The first pass draws a pool of classes from a proposal, a fixed distribution. The second pass scores
the pool with the batch, and a rule decides which classes the loss sees. Here ids are given in the
order of age, and most examples are of new classes, which the proposal knows.
"""

import torch

import tapas

NUM_CLASSES, DIM, BATCH = 10_000, 32, 128
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class NewClasses(tapas.Proposal):
    """Half of the draws are among the newest tenth of all classes, the others anywhere."""

    def __init__(self, num_classes: int):
        self.num_classes, self.num_new = num_classes, num_classes // 10

    def draw(self, k, *, generator):
        """Ids (k,), repeats allowed: the head draws until its pool has enough distinct ones."""
        new = self.num_classes - 1 - torch.randint(self.num_new, (k,), generator=generator)
        any_class = torch.randint(self.num_classes, (k,), generator=generator)
        return torch.where(torch.rand(k, generator=generator) < 0.5, new, any_class)

    def log_prob(self, ids):
        """Log-probability of each id. The loss is corrected by it, so it must match `draw`."""
        is_new = ids >= self.num_classes - self.num_new
        return (is_new.double() * 0.5 / self.num_new + 0.5 / self.num_classes).log()


class AnyQuery(tapas.Selection):
    """Keep the classes with the highest score for any single query of the batch."""

    random = False  # it needs no random numbers

    def select(self, given, keep):
        """Positions in the pool (keep,), rising, and the log of each class's weight in the loss."""
        weight, bias = given.rows(0, len(given))
        score = (given.query @ weight.T + bias).amax(dim=0)
        return score.topk(keep).indices.sort().values, torch.zeros_like(score[:keep])


def examples(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up inputs (num, DIM) and their classes (num,): each class has a centre, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    target = NewClasses(NUM_CLASSES).draw(num, generator=generator)
    centre = torch.randn(NUM_CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    x = centre[target] + torch.randn(num, DIM, generator=generator) / 2
    return x.to(DEVICE), target.to(DEVICE)


def train(**options) -> float:
    """The full softmax loss on held-out examples after 200 steps."""
    torch.manual_seed(0)
    encoder = torch.nn.Linear(DIM, DIM).to(DEVICE)
    head = tapas.TapasSoftmax(NUM_CLASSES, DIM, num_samples=50, device=DEVICE, **options)
    optimizer = tapas.optim.Combined(
        torch.optim.AdamW(encoder.parameters(), lr=1e-2), tapas.optim.RowwiseAdagrad(head, lr=0.2)
    )
    x, target = examples(200 * BATCH, seed=1)
    for inputs, classes in zip(x.split(BATCH), target.split(BATCH), strict=True):
        optimizer.zero_grad()
        head(encoder(inputs), classes).backward()
        optimizer.step()
    x, target = examples(2_000, seed=2)
    return float(head.full_loss(encoder(x), target))


mine = NewClasses(NUM_CLASSES)
print(f"probabilities sum to {mine.log_prob(torch.arange(NUM_CLASSES)).exp().sum():.6f}")
uniform = tapas.Uniform(NUM_CLASSES)
print(f"uniform proposal, rule 'priority': loss {train(proposal=uniform):.3f}")
print(f"own proposal, rule 'priority': loss {train(proposal=mine):.3f}")
print(f"own proposal, own rule: loss {train(proposal=mine, selection=AnyQuery()):.3f}")
