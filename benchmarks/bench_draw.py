"""How fast are 100,000 distinct classes drawn out of ten million?

Compared with `torch.multinomial` without replacement over the same probabilities, which reads
every class in each call. Target: it takes at least 10 times as long.
"""

import torch
from measuring import interleave, ratio, ratio_target, spread, write_record

import tapas

C, K = 10**7, 100_000
ALPHA = 0.75


def proposals() -> dict[str, tapas.Proposal]:
    counts = (1e8 / torch.arange(1, C + 1, dtype=torch.float64)).long() + 1
    return {"squashed": tapas.Squashed(counts, alpha=ALPHA), "uniform": tapas.Uniform(C)}


def main() -> None:
    results: dict[str, dict[str, list[float]]] = {}
    targets = []
    generator = tapas.rng.stream(0, "draws")
    for name, proposal in proposals().items():
        # float32, because float64 would be slower
        probability = proposal.log_prob(torch.arange(C)).exp().float()
        calls = {
            "ours": lambda proposal=proposal: proposal.sample(K, generator=generator),
            "multinomial": lambda p=probability: torch.multinomial(
                p, K, replacement=False, generator=generator
            ),
        }
        seconds = interleave(calls, repeats=20)
        for contender, values in seconds.items():
            print(f"{name:<10}{contender:<13}{spread(values)}")
        print(f"{name:<10}multinomial / ours: {ratio(seconds['multinomial'], seconds['ours'])}\n")
        measure = f"torch.multinomial without replacement / our draw, {name}"
        targets.append(
            ratio_target(measure, seconds["multinomial"], seconds["ours"], "at least", 10)
        )
        results[name] = seconds
    write_record("draw", {"C": C, "ids": K, "alpha": ALPHA}, {"seconds": results}, targets=targets)


if __name__ == "__main__":
    main()
