"""Verdicts on the synthetic claims, for fake ledgers with a known answer."""

from dataclasses import replace

from oracle.study_results import finished_study, put

from experiments.claims import NOT
from experiments.synthetic.claims import StudyResults, check_synthetic_claims
from experiments.synthetic.experiment import SEARCH_SEED
from experiments.synthetic.studies import STUDIES
from tapas.comparison.ledger import Ledger


def fake_results(tmp_path, accuracy, **more):
    studies = {name: finished_study(name, tmp_path, accuracy, **more) for name in STUDIES}
    return StudyResults(studies, {"seconds_n_128": 0.001, "seconds_n_512": 0.0035, "ratio": 3.5})


def as_the_paper_says(cell):
    """Depends on n·r, with a little less for fewer kept; all classes are worst."""
    if cell.method == "full":
        return 0.33
    pool = cell.num_samples * cell.presample_factor
    if pool > 1_000 and cell.num_samples == 16:
        return 0.2
    annealed = 0.002 if cell.temperature is not None and cell.temperature.end else 0
    return 0.33 - 0.5 / pool + annealed


def verdicts(results):
    return {claim.text: claim.verdict for claim in check_synthetic_claims(results)}


def test_results_like_the_papers_are_reproduced(tmp_path):
    def loss(cell):
        return 1 + cell.presample_factor - (cell.temperature.start if cell.temperature else 0)

    found = verdicts(fake_results(tmp_path, as_the_paper_says, loss=loss))
    assert (
        found.pop("The gain from r is larger in figure 2 than in figure 1.") == NOT
    )  # the fake one has none
    assert set(found.values()) == {"reproduced"}


def test_results_without_the_effect_are_not_reproduced(tmp_path):
    found = verdicts(fake_results(tmp_path, lambda cell: 0.3))
    for text in (
        "Figure 1: with n fixed, accuracy rises with r, most at small r.",
        "Figure 2: with n fixed, accuracy rises with r, most at small r.",
        "The top n of all classes, without a random first pass, generalise worse.",
        "Figure 1: the adaptive pass raises cross-entropy while ranking improves.",
        "Lower temperatures are more adaptive.",
        "Annealing the temperature helps.",
    ):
        assert found[text] == NOT, text


def test_a_gain_that_does_not_rise_everywhere_is_partly_reproduced(tmp_path):
    def peaked(cell):
        return {1: 0.2, 2: 0.3, 4: 0.32, 8: 0.31}.get(cell.presample_factor, 0.3)

    found = verdicts(fake_results(tmp_path, peaked))
    assert found["Figure 1: with n fixed, accuracy rises with r, most at small r."] == "partly"


def test_settings_are_chosen_without_test_points(tmp_path):
    study = STUDIES["figure-1"]
    ledger = Ledger(tmp_path / "results.jsonl")
    cell = study.experiment.cells[0]
    for run in study.experiment.learning_rates(ledger):
        assert run.judge == "validation"
        assert run.seed == SEARCH_SEED
        assert run.seed not in study.experiment.seeds
        put(ledger, run, 0.9 if run.lr == study.experiment.lrs[2] else 0.1, 1.0)
        put(
            ledger, replace(run, judge="test"), 1.0 if run.lr == study.experiment.lrs[0] else 0, 1.0
        )
    assert study.experiment.best_lr(ledger, cell) == study.experiment.lrs[2]


def test_a_cell_of_several_shards_takes_the_settings_of_one(tmp_path):
    experiment = STUDIES["shards"].experiment
    ledger = Ledger(tmp_path / "results.jsonl")
    sharded = next(c for c in experiment.cells if c.num_shards > 1)
    for run in experiment.learning_rates(ledger):
        assert run.num_shards == 1
        assert run.looks == 0
        put(ledger, run, 0.9 if run.lr == experiment.lrs[1] else 0.1, 1.0)
    assert experiment.best(ledger, sharded) == experiment.best(ledger, sharded.unsharded)
