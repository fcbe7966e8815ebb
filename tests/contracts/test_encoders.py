"""The contract of `Encoder`, tested for every encoder."""

import pytest
import torch
from error_text import raises_text

from tapas.encoders import (
    ENCODERS,
    Encoder,
    GRUEncoder,
    MeanEncoder,
    Places,
    TransformerEncoder,
    last_state,
)
from tapas.rng import stream

B, T, D = 5, 7, 6


@pytest.fixture(params=sorted(ENCODERS))
def build(request):
    return ENCODERS[request.param]


def sequences(name="x"):
    return torch.randn(B, T, D, generator=stream(0, name)), torch.tensor([7, 1, 3, 6, 2])


@pytest.mark.parametrize("changed", range(T))
def test_a_query_depends_on_no_later_vector(build, changed):
    encoder = build(D)
    x, lengths = sequences()
    other = x.clone()
    other[:, changed] += torch.randn(D, generator=stream(0, "change"))
    before, after = encoder(x, lengths), encoder(other, lengths)
    torch.testing.assert_close(before[:, :changed], after[:, :changed])
    assert not torch.allclose(before[:, changed], after[:, changed])


def test_there_is_one_query_for_every_position_and_a_shorter_batch_gives_the_same(build):
    encoder = build(D)
    x, lengths = sequences()
    assert encoder(x, lengths).shape == (B, T, D)
    torch.testing.assert_close(encoder(x[:2, :4], lengths[:2]), encoder(x, lengths)[:2, :4])


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0], ids=["last", "few", "all"])
@pytest.mark.parametrize(("num_sequences", "longest"), [(13, T), (7, T - 2), (1, 1), (23, 50)])
def test_queries_without_padding_are_those_of_forward_with_gradients_and_dropout(
    build, num_sequences, longest, share
):
    draws = stream(3, "lengths")
    lengths = torch.randint(1, longest + 1, (num_sequences,), generator=draws)
    if num_sequences > 20:
        lengths[[0, 5]] = 0  # this rank has fewer examples
    places = Places.of(lengths, max(T, longest))
    predicts = torch.rand(len(places.index), generator=draws) < share
    if share == 0:
        predicts[lengths[lengths > 0].cumsum(0) - 1] = True  # the end of each sequence
    predicts[-1] = True
    query_index = places.index[predicts]
    vectors = torch.randn(len(places.index), D, generator=draws, dtype=torch.float64)
    pull = torch.randn(len(query_index), D, generator=draws, dtype=torch.float64)
    found = []
    layers = {} if build is MeanEncoder else {"num_layers": 2}
    for way in (build.queries, Encoder.queries):
        encoder, rows = build(D, dropout=0.3, **layers).double(), vectors.clone().requires_grad_()
        query = way(encoder, rows, places, query_index, generator=stream(5, "dropout"))
        (query * pull).sum().backward()
        found.append([query, rows.grad, *(p.grad for p in encoder.parameters())])
    for ours, slow in zip(*found, strict=True):
        torch.testing.assert_close(ours, slow)


def test_initial_weights_depend_only_on_the_seed(build):
    first, second, other = build(D, seed=1), build(D, seed=1), build(D, seed=2)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    drawn = zip(first.parameters(), other.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in drawn if a.dim() > 1 and bool(a.any()))


def test_dropout_draws_only_from_the_generator_that_is_passed(build):
    encoder = build(D, dropout=0.5)
    x, lengths = sequences()
    plain = encoder(x, lengths)
    assert torch.equal(plain, build(D)(x, lengths))
    once = encoder(x, lengths, generator=stream(0, "drop"))
    assert torch.equal(once, encoder(x, lengths, generator=stream(0, "drop")))
    assert not torch.equal(once, encoder(x, lengths, generator=stream(1, "drop")))
    assert not torch.equal(once, plain)


def test_every_parameter_learns(build):
    encoder = build(D)
    x, lengths = sequences()
    (encoder(x, lengths) * sequences("weights")[0]).sum().backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in encoder.parameters())


def test_a_dropout_rate_outside_0_to_1_is_refused(build):
    for rate in (1.0, -0.1):
        with raises_text(f"dropout must be at least 0 and below 1, got {rate!r}."):
            build(D, dropout=rate)


def test_the_last_state_is_that_of_the_last_item():
    x, lengths = sequences()
    want = torch.stack([x[b, n - 1] for b, n in enumerate(lengths.tolist())])
    assert torch.equal(last_state(x, lengths), want)


def test_the_mean_is_that_of_the_window():
    encoder = MeanEncoder(D, window=3)
    x, lengths = sequences()
    mean = torch.stack([x[:, max(0, t - 2) : t + 1].mean(dim=1) for t in range(T)], dim=1)
    torch.testing.assert_close(encoder(x, lengths), mean + encoder.mix(mean))


def test_the_gru_takes_hidden_units_and_layers():
    encoder = GRUEncoder(D, hidden=11, num_layers=2)
    assert encoder(*sequences()).shape == (B, T, D)
    assert encoder.gru.weight_hh_l1.shape == (33, 11)


def test_a_transformer_refuses_heads_that_do_not_fit():
    with raises_text(
        "dim is 6, which is not divisible by num_heads=4. Make num_heads a divisor of dim."
    ):
        TransformerEncoder(D, num_heads=4)


def test_a_transformer_knows_how_far_back_an_item_is_and_not_where_a_history_begins():
    encoder = TransformerEncoder(D)
    torch.nn.init.normal_(encoder.distance, generator=stream(0, "distance"))
    x, _ = sequences()
    turned = x.clone()
    turned[:, [0, 1]] = x[:, [1, 0]]
    length = torch.full((B,), T)
    assert not torch.allclose(encoder(x, length)[:, -1], encoder(turned, length)[:, -1])
    one = TransformerEncoder(D, num_layers=1)
    one.distance.data[:, 1:] = -1e9  # sees only the item itself
    torch.testing.assert_close(one(x, length)[:, 3:], one(x[:, 3:], length - 3))


def test_distances_far_back_share_a_number():
    bucket = TransformerEncoder(D, num_heads=1)
    bucket.distance.data = torch.arange(20.0)[None]
    back = torch.tensor([0, 1, 7, 8, 9, 10, 16, 64, 10**6])
    assert bucket._bias(back, torch.tensor(0)).tolist()[0] == [0, 1, 7, 8, 8, 9, 12, 19, 19]
