"""Settings reach the objects that are built; defaults are resolved."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tapas import LocalTable, UsageError
from tapas.data.source import LogSource
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.mixture import count_transitions
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.selection import Priority, Top
from tapas.shapes import check_device
from tapas.training.build import build_training, table_specs, workload_of
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, OptimizerConfig, TrainConfig

ENCODERS = {"mean": MeanEncoder, "gru": GRUEncoder, "transformer": TransformerEncoder}
CONFIG = TrainConfig(
    log=LogSource(files=("x.parquet",)),
    model=ModelConfig(dim=6, history=7, layers=2, dropout=0.25),
    head=HeadConfig.of(
        num_samples=5, presample_factor=3, temperature=2.0, next_items=4, target_decay=0.5
    ),
    optimizer=OptimizerConfig(rows_lr=0.3, encoder_lr=0.02, weight_decay=0.01),
    loop=LoopConfig(batch=6, seed=11),
)


@pytest.mark.parametrize(("name", "kind"), ENCODERS.items())
def test_encoders_are_as_configured(data, name, kind):
    config = replace(CONFIG, model=replace(CONFIG.model, encoder=name))
    encoder = build_training(config, *data).model.encoder
    assert type(encoder) is kind
    assert (encoder.dim, encoder.dropout) == (6, 0.25)
    if kind is MeanEncoder:
        assert encoder.window == 7
    other = build_training(replace(config, loop=replace(CONFIG.loop, seed=12)), *data).model.encoder
    weights = zip(encoder.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(one, two) for one, two in weights)


@pytest.mark.parametrize(
    ("method", "rows"), [("in-batch", 40), ("full", 40), ("sampled", 5), ("tapas", 5)]
)
def test_a_memory_plan_has_the_rows_that_a_step_of_the_method_reads(method, rows):
    """Also for a method without samples, which reads only targets."""
    options = {"num_samples": 5} if rows == 5 else {}
    config = replace(CONFIG, head=HeadConfig.of(method=method, next_items=4, **options))
    ranks = SimpleNamespace(size=2)
    assert workload_of(config, np.ones(40, dtype=np.int64), ranks).num_samples == rows


def test_bfloat16_rows_are_half_as_large(data):
    model = replace(CONFIG.model, dtype="bfloat16", inputs="own")
    built = build_training(replace(CONFIG, model=model), *data)
    rows = [t.weight for t in built.model.modules() if isinstance(t, LocalTable)]
    assert [weight.dtype for weight in rows] == [torch.bfloat16] * 2
    whole = build_training(replace(CONFIG, model=replace(model, dtype="float32")), *data)
    assert 2 * built.plan.memory["rows"] == whole.plan.memory["rows"]
    with pytest.raises(
        UsageError, match=r"model\.dtype is 'bfloat16', but the method 'huffman' has no"
    ):
        replace(
            CONFIG, model=replace(CONFIG.model, dtype="bfloat16"), head=HeadConfig(method="huffman")
        )


def test_windows_head_and_proposal_are_as_configured(data):
    log, split = data
    head = CONFIG.head.with_options(
        anneal_to=0.5, alpha=0.5, beta=0.125, selection="top", score_queries=7
    )
    setup = build_training(replace(CONFIG, head=head), log, split)
    windows, model = setup.windows, setup.model
    assert (windows.length, windows.next_items, windows.batch_size) == (7, 4, 6)
    assert (windows.positions, windows.seed) == ("all", 11)
    head = model.head
    assert (head.num_classes, head.table.dim) == (log.num_items, 6)
    assert (head.num_samples, head.presample_factor) == (5, 3)
    assert head.selection == Top(score_queries=7)
    assert build_training(CONFIG, log, split).model.head.selection == Priority()
    assert (head.seed, head.temperature, model.target_decay) == (11, 2.0, 0.5)
    head.step = setup.config.loop.steps
    assert head.temperature == 0.5
    value = np.maximum((split.train_counts / split.train_counts.sum()) ** 0.5, 0.125)
    found = head.proposal.log_prob(torch.arange(log.num_items)).double().exp().numpy()
    np.testing.assert_allclose(found, value / value.sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "rows_kind", "encoder", "encoder_kind"),
    [
        ("rowwise-adagrad", RowwiseAdagrad, "adamw", torch.optim.AdamW),
        ("adagrad", Adagrad, "adagrad", torch.optim.Adagrad),
        ("lazy-adam", LazyAdam, "adamw", torch.optim.AdamW),
        ("sgd", SGD, "adamw", torch.optim.AdamW),
    ],
)
def test_all_rows_have_one_optimizer_and_the_encoder_another(
    data, rows, rows_kind, encoder, encoder_kind
):
    rules = replace(CONFIG.optimizer, rows=rows, encoder=encoder)
    setup = build_training(replace(CONFIG, optimizer=rules), *data)
    model = setup.model
    for table in (model.head.table, model.input_table):
        rule = table.row_optimizer
        assert type(rule) is rows_kind.formula
        assert (rule.lr, rule.weight_decay) == (0.3, 0.01)
    assert not torch.equal(model.head.table.weight, model.input_table.weight)
    assert type(setup.optimizer) is encoder_kind
    (group,) = setup.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.02, 0.01)
    assert set(group["params"]) == set(model.encoder.parameters())


@pytest.mark.parametrize("parts", [(), ("copy",), ("follow",), ("copy", "follow")])
def test_counting_parts_are_as_configured_and_change_nothing_that_is_trained(data, parts):
    log, split = data
    settings = {part: part in parts for part in ("copy", "follow")}
    setup = build_training(replace(CONFIG, model=replace(CONFIG.model, **settings)), log, split)
    mixture = setup.model.mixture
    assert (() if mixture is None else mixture.names) == parts
    assert setup.model.history == 7
    if "follow" in parts:
        counted = count_transitions(log.items, log.times, log.offsets, split.train_end, 200)
        assert torch.equal(mixture.follow.transitions.counts, counted.counts)
    (group,) = setup.optimizer.param_groups
    assert set(group["params"]) == set(setup.model.encoder.parameters())
    none = replace(CONFIG.model, copy=False, follow=False)
    initial = setup.model.state_dict()
    for name, value in (
        build_training(replace(CONFIG, model=none), *data).model.state_dict().items()
    ):
        assert torch.equal(value, initial[name]), name


def test_copying_reads_more_of_a_history_than_the_encoder():
    reads = {
        (copy, follow, history): ModelConfig(copy=copy, follow=follow, history=history).reads
        for copy, follow, history in [
            (False, False, 9), (False, True, 9), (False, True, 3), (True, False, 9),
            (True, True, 2_000),
        ]
    }  # fmt: skip
    assert list(reads.values()) == [9, 10, 10, 1_000, 2_000]


def test_inputs_are_as_configured(data):
    shared = build_training(
        replace(CONFIG, model=replace(CONFIG.model, inputs="shared")), *data
    ).model
    assert shared.input_table is None
    assert shared.inputs is shared.head.table


def test_defaults_are_resolved_to_numbers(data):
    log, split = data
    open_ends = replace(
        CONFIG, head=CONFIG.head.with_options(num_samples=None), loop=LoopConfig(epochs=3, batch=10)
    )
    setup = build_training(open_ends, log, split)
    per_epoch = setup.windows.steps_per_epoch
    assert setup.config.head.options["num_samples"] == log.num_items // 8
    assert setup.config.loop.steps == 3 * per_epoch
    assert 1 <= setup.config.loop.evaluate_every <= per_epoch
    again = build_training(setup.config, log, split).config
    assert again == setup.config
    total = int(split.train_counts.sum())  # and the floor is the value of a class seen once
    assert setup.model.head.proposal.beta == pytest.approx((1 / total) ** 0.75)
    large = build_training(replace(CONFIG, loop=LoopConfig(batch=10_000)), log, split)
    assert large.config.loop.batch == large.windows.num_examples


def test_targets_beyond_the_longest_history_are_left_out(data):
    """A million next items, to say all of them, took minutes for a step."""
    log, split = data
    every = replace(CONFIG, head=replace(CONFIG.head, next_items=10**6))
    setup = build_training(every, log, split)
    most = max(64, int(np.diff(log.offsets).max()))
    assert setup.config.head.next_items == setup.windows.batch(0).target.shape[1] == most
    assert not (setup.windows.batch(0).target[:, -1] >= 0).any()


def test_the_largest_seed_is_as_good_as_any():
    """The seeds of further tables were one larger, and refused."""
    most = 2**63 - 1
    specs = table_specs(replace(CONFIG, loop=LoopConfig(seed=most)), 5)
    assert [spec.seed for spec in specs.values()] == [most, -(2**63)]
    specs = table_specs(CONFIG, 5)
    assert [spec.seed for spec in specs.values()] == [11, 12]


@pytest.mark.parametrize("name", ["cuda:99", "abacus"])
def test_a_device_that_cannot_be_used_is_an_error(name):
    words = rf"loop.device is '{name}', which torch cannot use here: .* Try 'cpu'\."
    with pytest.raises(UsageError, match=words):
        check_device("loop.device", name)
