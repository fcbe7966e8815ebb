"""Tables and numbers of README.md and docs/ that come from records, ledgers or the memory plan.

`python benchmarks/doc_tables.py` prints them; tests/benchmarks/test_doc_tables.py compares them
with the pages.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from measuring import RECORDS
from sections import table

from tapas.training.memory_plan import Workload, in_units, memory_plan, traffic_designs

RESULTS = Path(__file__).parents[1] / "results"
BATCH, SAMPLES, PRESAMPLE = 1_000, 10_000, 10  # the sizes of the paper
BILLION, HOSTS, SEEN = 10**9, 50, 10**7


def newest_record(theme: str) -> dict[str, Any]:
    """The newest record of a benchmark."""
    record: dict[str, Any] = json.loads(max(RECORDS.glob(f"*_{theme}_*.json")).read_text())
    return record


def designs_table() -> str:
    """Bytes of one step with three designs, for docs/scaling.md."""
    rows = []
    for ranks in (10, 20, 50, 100):
        to_worker, servers, ours = traffic_designs(_workload(ranks=ranks)).values()
        sizes = (f"{size / 1e6:.1f} MB" for size in (to_worker, servers, ours))
        rows.append((str(ranks), *sizes, f"{ours / ranks / 1e6:.2f} MB"))
    head = ("m", "rows to the worker", "Algorithm 2", "no rows (ours)", "ours, each rank")
    return table(head, rows)


def billion_table() -> str:
    """Memory and traffic of a rank for a billion classes, for docs/scaling.md."""
    kinds = [
        ("float32", "rowwise-adagrad"),
        ("bfloat16", "rowwise-adagrad"),
        ("float32", "lazy-adam"),
    ]
    plans = [
        memory_plan(_workload(ranks=HOSTS, dtype=dtype, optimizer=optimizer, inputs=True))
        for dtype, optimizer in kinds
    ]
    parts = {name: [planned.memory[name] for planned in plans] for name in plans[0].memory}
    rows = [
        (name, *map(in_units, sizes))
        for name, sizes in parts.items()
        if max(sizes) > 50e6  # leaves out small parts
    ]
    rows.append(("**memory of a rank**", *(in_units(planned.memory_bytes) for planned in plans)))
    sent = "**sent by a rank in a step**"
    rows.append((sent, *(in_units(planned.traffic_bytes) for planned in plans)))
    return table(("", *(f"{dtype}, {optimizer}" for dtype, optimizer in kinds)), rows)


CHOSEN = "chosen from the log"  # the third model of the demo


def bias_table() -> str:
    """Bias of the estimated partition sum, for docs/accuracy.md."""
    results = newest_record("partition-bias")["results"]
    kinds = list(dict.fromkeys(name.split(": ")[0] for name in results))
    cases = list(dict.fromkeys(name.split(": ")[1] for name in results))

    def percent(found: dict[str, float]) -> str:
        return f"{100 * found['mean']:+.1f} % ± {100 * found['standard_error']:.1f}"

    def nats(found: dict[str, float]) -> str:
        return f"{found['mean']:+.3f} ± {found['standard_error']:.3f}"

    rows = []
    for case in cases:
        found = [results[f"{kind}: {case}"] for kind in kinds]
        cells = (cell for f in found for cell in (percent(f["bias"]), nats(f["log_bias"])))
        rows.append((case, *cells))
    head = [f"{kind.split(',')[0]}: {of}" for kind in kinds for of in ("Z", "log Z, nats")]
    return table(("", *head), rows)


def demo_table() -> str:
    """Models of `tapas demo` and baselines, for results/demo/README.md."""
    found = json.loads((RESULTS / "demo" / "results.json").read_text())
    models = {name: model["scores"]["model"] for name, model in found["ways"].items()}
    baselines = dict(list(found["ways"].values())[-1]["scores"].items())
    del baselines["model"]
    rows = []
    for name, scores in {**models, **baselines}.items():
        metrics = scores["metrics"]
        mean, low, high = (metrics["map@20"][end] for end in ("mean", "low", "high"))
        others = (f"{metrics[name]['mean']:.4f}" for name in ("recall@20", "ndcg@20"))
        rows.append((name, f"{mean:.4f} ({low:.4f} to {high:.4f})", *others))
    return table(("", "MAP@20", "recall@20", "NDCG@20"), rows)


def demo_sentence() -> str:
    """The two differences that `tapas demo` reports, for results/demo/README.md."""
    found = json.loads((RESULTS / "demo" / "results.json").read_text())
    chosen = found["ways"][CHOSEN]["lead"]["own most frequent"]
    pairs = (found["lead_map@20"], chosen)
    second_pass, lead = map(_signed, pairs)
    return (
        f"TAPAS minus sampled softmax: {second_pass}. The model {CHOSEN} minus own most frequent: "
        f"{lead}."
    )


def made_up_demos() -> list[dict[str, Any]]:
    """The records of `tapas demo --synthetic`, one for each seed."""
    return [
        json.loads(path.read_text()) for path in sorted((RESULTS / "demo").glob("made-up-*.json"))
    ]


def made_up_table() -> str:
    """MAP@20 of models by seed, of baselines and of the best lists, for results/demo/README.md."""
    seeds = made_up_demos()
    rows = [
        (name, *(_map_at_20(seed["ways"][name]["scores"]["model"]) for seed in seeds))
        for name in seeds[0]["ways"]
    ]
    scores = next(iter(seeds[0]["ways"].values()))["scores"]
    scores = {**scores, "best possible": seeds[0]["ceiling"]}
    for name, found in scores.items():
        if name != "model":
            rows.append((name, *[_map_at_20(found)] * len(seeds)))
    return table(("MAP@20", *(f"seed {seed['seed']}" for seed in seeds)), rows)


def made_up_sentence() -> str:
    """Paired differences for each seed, for results/demo/README.md."""
    seeds = made_up_demos()
    second_pass = ", ".join(_signed(seed["lead_map@20"]) for seed in seeds)
    leads = [seed["ways"][CHOSEN]["lead"] for seed in seeds]
    rival = min(leads[0], key=lambda name: leads[0][name]["mean"])
    beside = ", ".join(_signed(lead[rival]) for lead in leads)
    return (
        f"The model {CHOSEN} minus {rival}, the best of the baselines: {beside}. TAPAS minus "
        f"sampled softmax: {second_pass}."
    )


def _map_at_20(scores: dict[str, Any]) -> str:
    return f"{scores['metrics']['map@20']['mean']:.4f}"


def _signed(interval: dict[str, float]) -> str:
    return f"{interval['mean']:+.4f} ({interval['low']:+.4f} to {interval['high']:+.4f})"


def step_sentence() -> str:
    """The time of a step against other heads, for README.md."""
    record = newest_record("peers")
    readings = {target["measure"]: target["reading"] for target in record["targets"]}
    ours = "ours n=1000 r=8"
    two_passes, one_pass, plain = (
        1000 * statistics.median(record["results"]["step_seconds_by_round"][name].values())
        for name in (ours, "ours n=1000 r=1", "plain PyTorch n=1000")
    )
    full = readings[f"full softmax / {ours}"]
    return (
        f"n = 1,000, r = 8: {two_passes:.1f} ms, with one pass {one_pass:.1f} ms; one pass in "
        f"plain PyTorch {plain:.1f} ms; full softmax {round(full, -1):,.0f} times as long as ours"
    )


def classes_sentence() -> str:
    """How a step grows with the number of classes, for README.md."""
    record = newest_record("classes")
    times = record["targets"][0]["reading"]
    beyond = record["results"]["peak_bytes_beyond_table"]["1e+08"] / 1e6
    return (
        f"with D = 16, 10⁸ classes take {times:.2f} × the step of 10⁵ and {beyond:.0f} MB beyond "
        "the table"
    )


def _workload(**changed: Any) -> Workload:
    usual = {
        "num_classes": BILLION,
        "dim": 64,
        "num_samples": SAMPLES,
        "presample_factor": PRESAMPLE,
        "batch": BATCH,
        "head_classes": SEEN,
    }
    return Workload(**{**usual, **changed})


if __name__ == "__main__":
    parts = (
        *(designs_table, billion_table, bias_table, demo_table, demo_sentence),
        *(made_up_table, made_up_sentence),
        *(step_sentence, classes_sentence),
    )
    print("\n\n".join(part() for part in parts))
