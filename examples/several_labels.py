"""Several labels for each example: predict the tags of a document, out of 20,000 tags.

    python examples/several_labels.py

The target is a matrix of tag ids. Documents have one to four tags, so short rows end in -100,
which cross_entropy also takes for padding.
"""

import torch
from torch import nn

import tapas

NUM_TAGS, FEATURES, DIM, BATCH, K = 20_000, 32, 64, 128, 10
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = -100


def documents(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Made-up features (num, FEATURES), tag ids (num, 4) padded with -100, weights (num, 4).

    A few tags are frequent and most are rare. A document is the weighted sum of the vectors of
    its tags plus noise, and the first tag has the most weight.
    """
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 / torch.arange(1.0, NUM_TAGS // 4 + 1)
    tags = frequency.multinomial(num * 4, replacement=True, generator=generator).view(num, 4)
    tags = tags * 4 + torch.arange(4)  # distinct in each row
    absent = torch.arange(4) >= torch.randint(1, 5, (num, 1), generator=generator)
    weight = torch.tensor([1.0, 0.5, 0.25, 0.125]).masked_fill(absent, 0.0)
    meaning = torch.randn(NUM_TAGS, FEATURES, generator=torch.Generator().manual_seed(0))
    x = (weight[:, :, None] * meaning[tags]).sum(dim=1)
    x += torch.randn(num, FEATURES, generator=generator) / 10
    return x.to(DEVICE), tags.masked_fill(absent, PADDING).to(DEVICE), weight.to(DEVICE)


x, tags, weight = documents(30_000, seed=1)
x_test, tags_test, _ = documents(1_000, seed=2)
# Weights that sum to 1: a document counts the same in the loss, however many tags it has. Without
# `target_weight` the tags of a document would share its weight evenly.
weight = weight / weight.sum(dim=1, keepdim=True)

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(FEATURES, DIM), nn.ReLU(), nn.Linear(DIM, DIM)).to(DEVICE)
counts = tags[tags != PADDING].bincount(minlength=NUM_TAGS)
head = tapas.TapasSoftmax(NUM_TAGS, DIM, num_samples=300, counts=counts, device=DEVICE)
optimizer = tapas.optim.Combined(
    torch.optim.AdamW(encoder.parameters(), lr=5e-3), tapas.optim.RowwiseAdagrad(head, lr=0.2)
)
for rows in torch.randperm(len(x)).split(BATCH):
    optimizer.zero_grad()
    head(encoder(x[rows]), tags[rows], target_weight=weight[rows]).backward()
    optimizer.step()

# Recall: the share of a document's tags that are among the 10 best of all 20,000.
with torch.no_grad():
    _, best = head.topk(encoder(x_test), k=K)
recall = tapas.metrics.recall_at_k(best, tags_test, K).mean()
popular = counts.topk(K).indices.expand(len(x_test), K)  # the same ten tags for every document
baseline = tapas.metrics.recall_at_k(popular, tags_test, K).mean()
print(f"recall at {K} of the most frequent tags: {baseline:.3f}")
print(f"recall at {K} of the model: {recall:.3f}")
