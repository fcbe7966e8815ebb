"""What does the head cost where Python overhead dominates?  B=16, n=16, r=8, D=50, C=1000.

Compared with a hand-written loop: the same draws, scores, choice, loss, gradients and row-wise
Adagrad update in plain tensor calls, with no checks, no autograd and no options. Target: the
head takes at most 2 times as long. One thread, as in the experiments.
"""

import math

import torch
from measuring import interleave, ratio, ratio_target, spread, write_record

import tapas

B, N, R, D, C, LR = 16, 16, 8, 50, 1000, 0.1


class ByHand:
    """One step of TAPAS with uniform proposal, in as few tensor calls as possible."""

    def __init__(self, rule: str):
        self.rule = rule
        self.generator = torch.Generator().manual_seed(0)
        bound = 1 / math.sqrt(D)
        self.weight = torch.empty(C, D).uniform_(-bound, bound, generator=self.generator)
        self.bias = torch.zeros(C)
        self.weight_sum, self.bias_sum = torch.full((C, 1), 1e-6), torch.full((C,), 1e-6)

    def pool(self) -> tuple[torch.Tensor, float]:
        """R*N distinct ids, ascending, and their log expected count, which is the same for all."""
        draws = torch.randint(C, (R * N + 40,), generator=self.generator)
        ids, order = torch.sort(draws, stable=True)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        ids, position = ids[first], order[first]
        last = position.kthvalue(R * N).values
        return ids[position <= last], math.log(-math.expm1((int(last) + 1) * math.log1p(-1 / C)))

    def keep(self, query, target, ids, log_q):
        logit = torch.addmm(self.bias[ids], query, self.weight[ids].t())
        if self.rule == "top":
            kept = logit.logsumexp(dim=0).topk(N).indices
            return ids[kept], log_q
        logit[target[:, None] == ids] = -torch.inf
        share = torch.softmax(logit, dim=1).mean(dim=0)
        noise = 1 - torch.rand(len(ids), generator=self.generator)
        best = (share / noise).topk(N + 1)
        kept = best.indices[:N]
        return ids[kept], log_q - (best.values[N] / share[kept]).clamp_(min=1).log_()

    def step(self, query: torch.Tensor, target: torch.Tensor) -> float:
        ids, log_q = self.keep(query, target, *self.pool())
        target_rows, rows = self.weight[target], self.weight[ids]
        positive = (target_rows * query).sum(dim=1) + self.bias[target]
        logit = torch.addmm(self.bias[ids] - log_q, query, rows.t())
        logit[target[:, None] == ids] = -torch.inf
        partition = torch.logaddexp(logit.logsumexp(dim=1), positive)
        loss = (partition - positive).mean()
        share = (logit - partition[:, None]).exp_() / B
        pull = ((positive - partition).exp_() - 1) / B
        query_grad = share @ rows + pull[:, None] * target_rows
        touched = torch.cat([target, ids])
        grad = torch.cat([pull[:, None] * query, share.t() @ query])
        bias_grad = torch.cat([pull, share.sum(dim=0)])
        touched, slot = torch.unique(touched, return_inverse=True)
        grad = torch.zeros(len(touched), D).index_add_(0, slot, grad)
        bias_grad = torch.zeros(len(touched)).index_add_(0, slot, bias_grad)
        total = self.weight_sum[touched] + grad.square().mean(dim=1, keepdim=True)
        self.weight_sum[touched] = total
        self.weight[touched] -= LR * grad / total.sqrt_()
        total = self.bias_sum[touched] + bias_grad.square()
        self.bias_sum[touched] = total
        self.bias[touched] -= LR * bias_grad / total.sqrt_()
        self.query_grad = query_grad
        return float(loss)


def main() -> None:
    torch.set_num_threads(1)
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    target = torch.randint(C, (B,), generator=tapas.rng.stream(0, "target"))
    results: dict[str, object] = {}
    targets = []
    for rule in ("top", "priority"):
        hand = ByHand(rule)
        head = tapas.TapasSoftmax(
            C,
            D,
            num_samples=N,
            presample_factor=R,
            selection=rule,
            row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=LR),
        )
        leaf = query.clone().requires_grad_()

        def hand_steps(hand=hand) -> None:
            for _ in range(50):
                hand.step(query, target)

        def head_steps(head=head, leaf=leaf) -> None:
            for _ in range(50):
                loss = head(leaf, target)
                loss.backward()
                float(loss.detach())

        seconds = interleave({"by hand": hand_steps, "head": head_steps}, repeats=30)
        for name, values in seconds.items():
            print(f"{rule:<10}{name:<10}{spread([v / 50 for v in values])}")
        print(f"{rule:<10}head / by hand: {ratio(seconds['head'], seconds['by hand'])}\n")
        results[rule] = seconds
        measure = f"small head step / hand-written loop, {rule}"
        targets.append(ratio_target(measure, seconds["head"], seconds["by hand"], "at most", 2))
    write_record(
        "small-step",
        {"B": B, "n": N, "r": R, "D": D, "C": C, "steps_per_repeat": 50},
        {"seconds": results},
        targets=targets,
    )


if __name__ == "__main__":
    main()
