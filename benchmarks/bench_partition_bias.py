"""How far is the estimated partition sum from the exact one, on average?

Z is the exact sum over all classes, Z^ the head's estimate: the target exactly, kept classes by
inverse expected count. `bias` is the mean of Z^/Z - 1: 0 if the correction is right. `log bias`
is the mean of log Z^ - log Z, what the loss sees: below 0 for any finite sample, by Jensen's
inequality. Both with standard errors over independent draws. Target: the bias of unbiased rules is
within 4 standard errors; if all are correct, one run in 1,600 misses it.
"""

import math

import torch
from measuring import Target, quick, write_record

import tapas

C, D, B, DRAWS = 20_000, 16, 32, 2_000
CASES = {
    "sampled softmax, n=100": {"num_samples": 100, "presample_factor": 1},
    "sampled softmax, n=800": {"num_samples": 800, "presample_factor": 1},
    "priority, n=100, r=8": {"num_samples": 100, "presample_factor": 8},
    "priority, n=100, r=8, 8 queries score": {
        "num_samples": 100,
        "presample_factor": 8,
        "selection": tapas.Priority(score_queries=8),
    },
    "top, n=100, r=8": {"num_samples": 100, "presample_factor": 8, "selection": "top"},
    "priority, n=3000, r=2 (pool > C/4)": {"num_samples": 3000, "presample_factor": 2},
}


def measure(options: dict[str, object], scale: float) -> tuple[list[float], list[float]]:
    counts = (1e6 / torch.arange(1, C + 1)).long() + 1
    head = tapas.TapasSoftmax(C, D, proposal=tapas.Squashed(counts, alpha=0.75), **options)
    head.table.weight.mul_(scale)
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    target = torch.multinomial(counts.double(), B, generator=tapas.rng.stream(0, "target"))
    logits = (query @ head.table.weight.T).double()
    exact = logits.logsumexp(dim=1)
    bias, log_bias = [], []
    for step in range(DRAWS // 20 if quick() else DRAWS):
        head.step = step
        kept = head.sample(query, target)
        chosen = (logits[:, kept.ids] - kept.log_q.double()).masked_fill(
            kept.ids[None, :] == target[:, None], -torch.inf
        )
        target_logit = logits.gather(1, target[:, None])
        error = torch.cat([chosen, target_logit], dim=1).logsumexp(dim=1) - exact
        bias.append(float(error.expm1().mean()))
        log_bias.append(float(error.mean()))
    return bias, log_bias


def summary(values: list[float]) -> dict[str, float]:
    """Mean and standard error, which the record has instead of thousands of draws."""
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    error = math.sqrt(variance / len(values))
    return {"mean": mean, "standard_error": error, "draws": len(values)}


def in_percent(values: list[float]) -> str:
    found = summary(values)
    return f"{100 * found['mean']:+.2f} % ± {100 * found['standard_error']:.2f}"


def in_nats(values: list[float]) -> str:
    found = summary(values)
    return f"{found['mean']:+.4f} ± {found['standard_error']:.4f}"


def main() -> None:
    results: dict[str, object] = {}
    worst = 0.0
    for scale, name in ((1.0, "flat softmax, logit spread 0.6"), (5.0, "sharp, spread 3")):
        print(f"\n{name}: C={C}, B={B}, {DRAWS} draws")
        print(f"  {'':<40}{'bias of Z':<20}bias of log Z, nats")
        for case, options in CASES.items():
            bias, log_bias = measure(options, scale)
            print(f"  {case:<40}{in_percent(bias):<20}{in_nats(log_bias)}")
            found = summary(bias)
            results[f"{name}: {case}"] = {"bias": found, "log_bias": summary(log_bias)}
            if not case.startswith("top"):  # biased by design
                worst = max(worst, abs(found["mean"]) / found["standard_error"])
    write_record(
        "partition-bias",
        {"C": C, "D": D, "B": B, "draws": DRAWS},
        results,
        targets=[
            Target(
                measure="largest bias of the partition sum, sampled softmax and priority",
                target=4,
                kind="at most",
                reading=worst,
                unit="standard errors",
            )
        ],
    )


if __name__ == "__main__":
    main()
