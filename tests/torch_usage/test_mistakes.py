"""Mistakes in training class rows raise errors that name the cure, and move no row."""

import re
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
from contracts.heads import build
from torch import nn
from torch_usage.reference import B, C, D, Model, batch, draw, head_of

import tapas
from tapas import UsageError, ids_of
from tapas.candidates import Candidates
from tapas.optim import SGD, Adagrad, Combined, LazyAdam, RowwiseAdagrad

NO_OPTIMIZER = (
    "the class rows have gradients from an earlier backward pass, but no optimizer: the rows would "
    "never move. Create one beside the encoder's, tapas.optim.RowwiseAdagrad(head, lr=0.1), and "
    "step both, or combine both with tapas.optim.Combined(...). To train no rows, call "
    "head.requires_grad_(False)."
)
NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which skips such a step."
)
SECOND_OPTIMIZER = (
    "another optimizer also has the table's anchor among its parameters, as with "
    "model.parameters(). A GradScaler would unscale the rows twice, and that optimizer's zero_grad "
    "drops their gradients before they are used. Give it encoder.parameters(), or combine both: "
    "tapas.optim.Combined(torch.optim.AdamW(model.parameters()), "
    "tapas.optim.RowwiseAdagrad(head))."
)
ASSIGNED_GRAD = (
    "anchor.grad was assigned: it is only the norm of the gradients of class rows, which come from "
    "`backward` alone. Change it in place, as `grad.mul_(0.5)` does, and assign gradients only to "
    "other parameters."
)
OTHER_STATE = "this state is not that of a Adagrad for these rows"


def says(words, end="$"):
    return pytest.raises(UsageError, match="^" + re.escape(words) + end)


def learned_by(model):
    return [p for p in model.parameters() if p.requires_grad]


def anchor_of(model):
    return model.head.table.gradients.anchor


def stays(model, before):
    return all(map(torch.equal, model.rows(), before))


def step_of(optimizer, model):
    """One step of a training loop."""
    optimizer.zero_grad()
    model(*batch()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def dropped_optimizer(model):
    SGD(model, lr=0.1)
    model(*batch()).backward()


def optimizer_of_another_head(model):
    other = Model()
    optimizer, before = SGD(other, lr=0.1), other.rows()
    model(*batch()).backward()
    optimizer.step()
    assert stays(other, before)
    return optimizer


def zeroed_by_the_head(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(*batch()).backward()
    optimizer.step()
    model.head.zero_grad()


def updated_by_hand(model):
    """p.data -= lr * g for all parameters, with gradients of autograd.grad."""
    learned = learned_by(model)
    grads = torch.autograd.grad(model(*batch()), learned)
    for parameter, grad in zip(learned, grads, strict=True):
        parameter.data -= 0.1 * grad


UNTRAINED = {  # training loops that would never move the rows
    "AdamW of all": lambda model: step_of(torch.optim.AdamW(model.parameters()), model),
    "AdamW of the encoder": lambda model: step_of(
        torch.optim.AdamW(model.encoder.parameters()), model
    ),
    "no optimizer": lambda model: model(*batch()).backward(),
    "an optimizer that no longer exists": dropped_optimizer,
    "an optimizer of another head": optimizer_of_another_head,
    "AdamW of all, and head.zero_grad()": zeroed_by_the_head,
    "an update by hand": updated_by_hand,
}


@pytest.mark.parametrize("loop", UNTRAINED)
def test_rows_without_an_optimizer_are_an_error_in_the_second_training_call(loop):
    model = Model()
    before, kept = model.rows(), UNTRAINED[loop](model)
    with says(NO_OPTIMIZER):
        model(*batch(1))
    assert stays(model, before)
    assert model.head.step == 1
    with torch.no_grad():  # evaluation goes on
        assert float(model(*batch(1))) > 0
    model.requires_grad_(False)
    model(*batch(1))
    model.requires_grad_(True)
    step_of(SGD(model, lr=0.1), model)  # the cure of the error
    assert not stays(model, before)
    del kept


def test_gradients_of_rows_may_be_zeroed_without_a_step():
    model = Model()
    for number in range(2):
        model(*batch(number)).backward()
        model.zero_grad()


def cleared(model, rows):
    step_of(torch.optim.AdamW(model.parameters()), model)
    rows.step()


def unscaled_twice(model, rows):
    """A GradScaler would unscale the rows once for each optimizer that has them."""
    dense = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(*batch())).backward()
    scaler.step(dense)
    scaler.step(rows)


def updated_by_hand_beside(model, rows):
    updated_by_hand(model)
    model(*batch(1))


def assigned(model, rows):
    """As PCGrad does: autograd.grad, then p.grad = g."""
    learned = learned_by(model)
    for parameter, grad in zip(learned, torch.autograd.grad(model(*batch()), learned), strict=True):
        parameter.grad = grad
    rows.step()


def put_back(*numbers):
    """Accumulation by hand: rows would move by the gradients of one pass only."""

    def of_batches(model, rows):
        total = [0.0] * len(learned_by(model))
        for number in numbers:
            model.zero_grad()
            model(*batch(number)).backward()
            found = [p.grad.clone() for p in learned_by(model)]
            total = [a + b for a, b in zip(total, found, strict=True)]
        for parameter, grad in zip(learned_by(model), total, strict=True):
            parameter.grad = grad
        rows.step()

    return of_batches


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (cleared, SECOND_OPTIMIZER),
        (unscaled_twice, SECOND_OPTIMIZER),
        (updated_by_hand_beside, SECOND_OPTIMIZER),
        (assigned, ASSIGNED_GRAD),
        (put_back(0), ASSIGNED_GRAD),
        (put_back(0, 1), ASSIGNED_GRAD),
    ],
)
def test_changing_or_assigning_the_anchor_is_an_error(mistake, words):
    model = Model()
    rows = SGD(model, lr=0.1)
    if words == ASSIGNED_GRAD:  # also after a step that was right
        model(*batch(5)).backward()
        rows.step()
        model.zero_grad()
    before = model.rows()
    with says(words):
        mistake(model, rows)
    assert stays(model, before)


def test_an_optimizer_of_all_parameters_works_in_a_combined():
    """The cure that the error names: Combined(AdamW(model.parameters()), rows)."""
    model = Model()
    before = model.rows()
    step_of(Combined(torch.optim.AdamW(model.parameters()), SGD(model, lr=0.1)), model)
    assert not stays(model, before)


def test_a_hook_on_the_anchor_is_a_warning():
    """Not an error: hooks that log gradients are registered on every parameter."""
    model = Model()
    for parameter in learned_by(model):
        parameter.register_hook(lambda grad: 0.01 * grad)
    words = "the anchor of the class rows has a hook, which sees a gradient of 0 and cannot change"
    with pytest.warns(UserWarning, match=words):
        model(*batch())
    model(*batch())  # warns only once


def test_halving_gradients_in_place_equals_halving_the_loss():
    ours, half = Model(), Model()
    for model, scale in ((ours, 1.0), (half, 0.5)):
        rows = SGD(model, lr=0.1)
        (scale * model(*batch())).backward()
        if model is ours:
            for parameter in learned_by(model):
                parameter.grad.mul_(0.5)
        rows.step()
    torch.testing.assert_close(ours.rows(), half.rows())


def test_initialising_all_parameters_is_not_taken_for_another_optimizer():
    """for p in model.parameters(): p.uniform_(), as many language models do."""
    model = Model()
    generator = tapas.rng.stream(0, "drawn anew")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    rows = SGD(model, lr=0.1)
    for _ in range(2):
        step_of(rows, model)


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda head, x, t: torch.autograd.functional.hessian(lambda q: head(q, t), x),
        lambda head, x, t: torch.autograd.functional.hvp(lambda q: head(q, t), x, x),
        lambda head, x, t: torch.autograd.grad(head(x.requires_grad_(), t), x, create_graph=True),
    ],
)
@pytest.mark.parametrize("method", ["tapas", "nce", "two-level", "self-normalised"])
def test_second_derivatives_are_refused(differentiate, method):
    """They would silently be 0, as if the loss were linear."""
    head = build(method, row_optimizer=None)
    x, target = draw(4, head.dim), torch.arange(4)
    with says(
        "the gradient of a head cannot be differentiated again: with create_graph=True, as for a "
        "Hessian or a gradient penalty, a term would be missing. Use "
        "torch.nn.functional.cross_entropy instead."
    ):
        differentiate(head, x, target)


def test_training_a_head_in_eval_mode_warns_once():
    head = tapas.TapasSoftmax(C, D, num_samples=5).eval()
    rows = SGD(head, lr=0.1)
    x, target = batch()
    head(x, target)  # computing a loss with gradients enabled is not yet training
    head(x, target).backward()
    rows.step()
    words = "the head is trained in eval(): every step draws the same classes. Call model.train()"
    with pytest.warns(UserWarning, match=re.escape(words)):
        head(x, target)
    head(x, target).backward()
    head(x, target)


def test_evaluation_between_training_steps_does_not_warn():
    head = tapas.TapasSoftmax(C, D, num_samples=5)
    rows = SGD(head, lr=0.1)
    for number in range(3):
        rows.zero_grad()
        head.train()(*batch(number)).backward()
        rows.step()
        head.eval()(*batch(number))


def test_nested_combined_optimizers_are_flattened():
    model = Model()
    dense, rows = torch.optim.SGD(model.parameters(), lr=0.1), SGD(model, lr=0.1)
    combined = Combined(Combined(rows), dense)
    assert combined.optimizers == (rows, dense)
    anchor = anchor_of(model)
    assert sum(p is anchor for group in combined.param_groups for p in group["params"]) == 1


def parameter(*shape, dtype=torch.float32):
    return nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


def candidates(*ids):
    return Candidates(torch.tensor(ids), torch.zeros(len(ids)))


def loss_with(*ids):
    """The loss of a user's head whose candidates are `ids`."""

    class Mine(tapas.heads.SampledSoftmax):
        def candidates(self, batch):
            return candidates(*ids)

    return Mine(C, D, num_samples=3)(*batch())


def combined_attribute(name):
    words = (
        f"the {name} of a Combined cannot be assigned. Assign that of one of its optimizers, "
        f"combined.optimizers[0].{name}, or use load_state_dict."
    )
    return lambda model: setattr(Combined(SGD(model)), name, []), words


ROWS = "moves the rows of heads and tables, got "
GROUP = "a group of SGD must be a dict with 'params', a head or a table, got "
ITSELF = ". Pass the head itself, not its parameters."
AS_BUILT = "as the table was built."
ONCE = "Combined needs at least one optimizer, and each only once."
RISE = (
    "the ids of candidates must be distinct and ascending, because targets are looked up among "
    "them. Sort ids and log_q together."
)
LR = "SGD.lr must be a finite number of at least 0, got "
LARGE = "which float32 cannot hold."
WRONG = [  # a call with a model, and its error
    (lambda model: SGD(model.parameters()), f"SGD {ROWS}Parameter{ITSELF}"),
    (lambda model: SGD(anchor_of(model)), f"SGD {ROWS}Parameter{ITSELF}"),
    (lambda model: SGD(None), f"SGD {ROWS}NoneType{ITSELF}"),
    (
        lambda model: LazyAdam(model.encoder),
        "LazyAdam found no class table in what it was given, so it has no rows to move. Pass a "
        "head, a table or a model that contains one.",
    ),
    (lambda model: SGD([{"lr": 1.0}]), GROUP + "{'lr': 1.0}."),
    (lambda model: SGD([{"params": model}, Model()]), GROUP + "a Model."),
    (lambda model: SGD(model, lr=torch.ones(2)), LR + "tensor([1., 1.])."),
    (lambda model: SGD(model, lr=1e39), f"{LR}1e+39, {LARGE}"),
    (
        lambda model: Adagrad(model, eps=1e-46),
        f"Adagrad.eps must be a finite number above 0, got 1e-46, {LARGE}",
    ),
    (
        lambda model: Combined(model.head),
        "Combined takes optimizers, got TapasSoftmax. Build each one first.",
    ),
    (lambda model: Combined(), ONCE),
    (lambda model: Combined(*[SGD(model)] * 2), ONCE),
    (
        lambda model: Combined(SGD(model)).add_param_group({"params": []}),
        "a Combined has no parameter groups of its own. Add the group to one of its optimizers, "
        "combined.optimizers[0].add_param_group(group).",
    ),
    combined_attribute("state"),
    combined_attribute("param_groups"),
    (
        lambda model: Combined(torch.optim.LBFGS(model.encoder.parameters()), SGD(model)),
        "LBFGS calls the model several times in a step and cannot be combined with other "
        "optimizers. Step it separately from the optimizer of the rows.",
    ),
    (
        lambda model: RowwiseAdagrad(head_of(SGD.fused(lr=0.5))),
        "these rows already move in `backward`, by SGD(lr=0.5, weight_decay=0.0). Build the head "
        "without row_optimizer to use an optimizer.",
    ),
    (
        lambda model: setattr(model.head.table, "weight", parameter(C - 1, D)),
        f"weight has shape (22, 5) and torch.float32; expected (23, 5) and torch.float32, "
        f"{AS_BUILT}",
    ),
    (
        lambda model: setattr(model.head.table, "bias", parameter(C, dtype=torch.float16)),
        f"bias has shape (23,) and torch.float16; expected (23,) and torch.float32, {AS_BUILT}",
    ),
    (
        lambda model: setattr(
            model.head.table, "weight", nn.utils.skip_init(nn.Embedding, C, D).weight
        ),
        "the weight of a class table cannot be a parameter that another module trains, too. To "
        "share rows, have the model read its inputs from the table, head.table.lookup(ids); to set "
        "them, head.table.weight.copy_(values).",
    ),
    (
        lambda model: model.head.table.lookup(torch.arange(3), padding_idx="x"),
        "padding_idx must be an integer, got 'x'.",
    ),
    (
        lambda model: model.head(batch()[0]),
        "a head returns the loss and needs a target: head(query, target). To predict, call "
        "head.topk(query, k) for the best classes, or head.log_prob(query, ids).",
    ),
    (
        lambda model: ids_of(torch.tensor(1)),
        "multi_hot has shape (); expected (..., C).",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_a_wrong_call_raises_an_error_with_a_cure(call, words):
    with says(words):
        call(Model())


@pytest.mark.parametrize("ids", [[4, 2, 7], [2, 4, 4]])
def test_candidates_that_are_not_ascending_are_refused(ids):
    with says(RISE):
        loss_with(*ids)


def test_targets_may_have_any_integer_dtype():
    query, target = batch()
    want = tapas.TapasSoftmax(C, D, num_samples=5)(query, target)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(tapas.TapasSoftmax(C, D, num_samples=5)(query, target.to(dtype)), want)


def test_rows_cannot_become_the_parameter_of_another_module():
    embedding = nn.utils.skip_init(nn.Embedding, C, D)
    with pytest.raises(TypeError, match="cannot assign"):
        embedding.weight = head_of().table.weight


def test_a_parametrized_table_is_refused():
    head = head_of()
    nn.utils.parametrize.register_parametrization(head.table, "weight", nn.Identity())
    with says("the rows of a class table cannot be parametrized", end=""):
        head(*batch())


def test_one_table_in_two_groups_of_one_optimizer_is_refused_by_torch():
    model = Model()
    with pytest.raises(ValueError, match="more than one parameter group"):
        SGD([{"params": model.head}, {"params": model}])


class TestSwappingTheFusedUpdate:
    """`head.table.row_optimizer = ...` once overflowed the heap."""

    def test_another_state_is_refused(self):
        table = tapas.TapasSoftmax(
            2000, 64, num_samples=5, row_optimizer=RowwiseAdagrad.fused()
        ).table
        for other in (Adagrad.fused(lr=0.05), LazyAdam.fused(), SGD.fused()):
            with says(
                f"the rows have the state of RowwiseAdagrad, with which {other.name} cannot "
                f"continue. Build a table with {other.name}; to change a hyperparameter, set "
                "table.row_optimizer.lr = 0.05."
            ):
                table.row_optimizer = other
        assert table.row_optimizer == RowwiseAdagrad.fused()

    def test_other_hyperparameters_of_the_same_formula_are_accepted(self):
        table = tapas.LocalTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
        table.row_optimizer = RowwiseAdagrad.fused(lr=0.05)
        table.row_optimizer.lr = 0.01
        assert table.row_optimizer.lr == 0.01
        with says("RowwiseAdagrad.lr must be a finite number of at least 0, got -1."):
            table.row_optimizer.lr = -1
        words = r"RowwiseAdagrad has no number 'rate'\. It has: lr, weight_decay, initial"
        with pytest.raises(AttributeError, match=words):
            table.row_optimizer.rate = 0.1

    @pytest.mark.parametrize(("before", "after"), [(None, SGD.fused()), (SGD.fused(), None)])
    def test_a_table_cannot_be_fused_or_unfused_later(self, before, after):
        table = tapas.LocalTable(C, D, row_optimizer=before)
        with says("whether rows move in `backward` is decided when", end=""):
            table.row_optimizer = after

    @pytest.mark.parametrize("kernels", ["native", "torch"])
    def test_a_state_of_another_shape_moves_nothing(self, kernels):
        head = head_of(Adagrad.fused(lr=0.1))
        head.table.weight_sum = torch.zeros(C, 1)
        before = head.table.weight.clone(), head.table.bias.clone()
        refused = pytest.raises(UsageError, match=r"expected .* No row was changed\.$")
        with refused, nullcontext() if kernels == "native" else tapas.native.switched_off():
            head(*batch()).backward()
        assert torch.equal(head.table.weight, before[0])
        assert torch.equal(head.table.bias, before[1])
        assert head.table.num_updates == 0
        assert not bool(head.table.weight_sum.any())


def test_kernels_never_get_ids_or_shapes_out_of_bounds():
    """They check nothing themselves."""
    if tapas.native.state() != "in use on CPUs":
        pytest.skip("no kernels")
    rows, one, grad = torch.zeros(7, 4), torch.tensor([3]), torch.ones(1, 4)
    words = "gradients of rows must be float32, one for each"
    for ids, of_rows in (
        (torch.tensor([7]), grad),
        (torch.tensor([-1]), grad),
        (one.int(), grad),
        (torch.tensor([1, 2]), grad),
        (one, grad.double()),
        (one.to("meta"), grad),
        (one, grad.to("meta")),
    ):
        with says(words, end=""):
            tapas.native.update(0, (0.1, 0.0), rows, ids, of_rows, [])
        with says(words, end=""):
            tapas.native.sum_rows(ids, of_rows, of_rows[:, 0].contiguous(), 7)
    with says(words, end=""):
        tapas.native.sum_rows(one, grad, grad[:, 0].contiguous(), -1)
    biases = tapas.native.Biases(torch.zeros(7), torch.ones(1, 1), [])
    with says(words, end=""):
        tapas.native.update(0, (0.1, 0.0), rows, one, grad, [], biases)
    with says("update formula 3 takes 7 numbers, got 2."):
        tapas.native.update(3, (0.1, 0.0), rows, one, grad, [rows.clone(), rows.clone()])
    assert not bool(rows.any())


def stepped(kind, size=C, **options):
    head = tapas.TapasSoftmax(size, D, num_samples=5)
    optimizer = kind(head, **options)
    head(*batch()).backward()
    optimizer.step()
    return head, optimizer


def test_the_state_of_another_kind_of_optimizer_is_refused_and_nothing_is_loaded():
    head, adagrad = stepped(Adagrad, lr=0.3)
    before = {k: v.clone() for k, v in head.table.gradients.state.items()}
    with says(
        "this state is not that of a Adagrad: it lacks initial_sum. Load it into the kind of "
        "optimizer that saved it. Nothing was loaded."
    ):
        adagrad.load_state_dict(stepped(LazyAdam)[1].state_dict())
    with says(OTHER_STATE, end=""):
        adagrad.load_state_dict(stepped(RowwiseAdagrad)[1].state_dict())
    larger = stepped(Adagrad, size=C + 1)[1].state_dict()
    sizes = rf"'weight_sum': \({C + 1}, {D}\).*expected.*\({C}, {D}\)"
    with pytest.raises(UsageError, match=sizes):
        adagrad.load_state_dict(larger)
    combined = Combined(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), adagrad)
    with says("this state has 1 parameter groups; expected 2, those of", end=""):
        combined.load_state_dict(larger)
    assert adagrad.param_groups[0]["lr"] == 0.3
    assert all(torch.equal(before[k], v) for k, v in head.table.gradients.state.items())


def tampered(model, optimizer):
    """Put a state of another shape into the optimizer."""
    state = {"weight_sum": torch.zeros(2, D), "bias_sum": torch.zeros(3, 1)}
    optimizer.state[anchor_of(model)].update(state, step=torch.tensor(1))
    model(*batch()).backward()


def not_finite(value):
    return lambda model, optimizer: (model(*batch()) * value).backward()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (not_finite(torch.nan), NOT_FINITE),
        (not_finite(torch.inf), NOT_FINITE),
        (not_finite(-torch.inf), NOT_FINITE),
        (tampered, OTHER_STATE),
    ],
)
@pytest.mark.parametrize("combined", [False, True])
def test_a_step_that_is_refused_for_one_table_moves_nothing_at_all(combined, spoil, words):
    """Neither the rows of another table nor the encoder move."""
    good, bad = Model(), Model()
    dense = torch.optim.SGD([*good.encoder.parameters(), *bad.encoder.parameters()], lr=0.1)
    optimizer = rows = Adagrad([good, bad], lr=0.1)
    if combined:
        rows = Adagrad(bad, lr=0.1)
        optimizer = Combined(dense, SGD(good, lr=0.1), rows)
    good(*batch()).backward()
    spoil(bad, rows)
    before = [good.rows(), bad.rows(), good.encoder.weight.detach().clone()]
    with says(words, end="$" if words == NOT_FINITE else ""):
        optimizer.step()
    assert stays(good, before[0])
    assert stays(bad, before[1])
    assert torch.equal(good.encoder.weight.detach(), before[2])


def test_a_gradient_that_is_not_finite_moves_no_row_in_backward_either():
    model = Model(head_of(RowwiseAdagrad.fused(lr=0.1)))
    before = model.rows()
    with says(NOT_FINITE):
        (model(*batch()) * torch.nan).backward()
    assert stays(model, before)
    assert model.head.table.num_updates == 0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_removes_a_gradient_that_is_not_finite(set_to_none):
    model = Model()
    optimizer = SGD(model, lr=0.1)
    (model(*batch()) * torch.nan).backward()
    model.zero_grad(set_to_none=set_to_none)
    model(*batch(1)).backward()
    before = model.rows()
    optimizer.step()
    assert bool(model.rows()[0].isfinite().all())
    assert not torch.equal(model.rows()[0], before[0])


def test_the_newest_optimizer_of_rows_is_the_one_that_moves_them():
    """As when a notebook cell is run twice."""
    model = Model()
    first = SGD(model, lr=0.1)
    second = RowwiseAdagrad(model, lr=0.1)
    model(*batch()).backward()
    before = model.rows()
    with says("the rows of this SGD have a newer optimizer, a RowwiseAdagrad. Step that one."):
        first.step()
    assert stays(model, before)
    second.step()
    assert not stays(model, before)


def refused(model, optimizer):
    with says("Adagrad found no class table in what it was given", end=""):
        Adagrad([{"params": model}, {"params": nn.utils.skip_init(nn.Linear, 1, 1)}])
    return optimizer


def made_and_dropped(model, optimizer):
    SGD(model, lr=0.1)
    return optimizer


def loaded_by_an_older_one(model, optimizer):
    newer = Adagrad(model, lr=0.1)
    newer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return newer


def reset(model, optimizer):
    optimizer.state = defaultdict(dict)
    return optimizer


@pytest.mark.parametrize(
    ("happens", "steps"),
    [(refused, 2), (made_and_dropped, 2), (loaded_by_an_older_one, 2), (reset, 1)],
)
def test_the_remaining_optimizer_continues_with_its_own_state(happens, steps):
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    optimizer.step()
    left = happens(model, optimizer)
    left.step()
    assert int(left.state[anchor_of(model)]["step"]) == steps


def test_gradients_beyond_float32_have_an_infinite_norm_and_are_refused():
    model = Model()
    optimizer, before = SGD(model, lr=1e-3), model.rows()
    model.head(torch.full((3, model.head.dim), 2e38), torch.tensor([7, 8, 9])).backward()
    assert anchor_of(model).grad == torch.inf
    with pytest.raises(UsageError, match="NaN or inf"):
        optimizer.step()
    assert stays(model, before)


def no_memory(*_):
    raise MemoryError


def test_a_first_step_that_runs_out_of_memory_can_be_repeated(monkeypatch):
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    with monkeypatch.context() as patched:
        patched.setattr(type(model.head.table), "_new_state", no_memory)
        with pytest.raises(MemoryError):
            optimizer.step()
    optimizer.step()
    assert model.head.table.num_updates == 1


def test_a_gradscaler_skips_a_step_that_overflows_and_continues():
    model = Model()
    optimizer = Combined(torch.optim.SGD(model.parameters(), lr=0.1), SGD(model, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before = model.rows()
    scaler.scale(model(*batch()) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert stays(model, before)
    assert scaler.get_scale() == 2.0**15
    optimizer.zero_grad()
    scaler.scale(model(*batch())).backward()
    scaler.step(optimizer)
    assert not stays(model, before)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("scale", [4096, -65536])
def test_a_scaled_loss_is_refused_by_fused_rows(reduction, scale):
    head = head_of(RowwiseAdagrad.fused(lr=0.1), reduction=reduction)
    before = head.table.weight.clone()
    for call in (head, head.sampled_log_prob):
        with says(
            f"the gradient that arrives at the loss is {abs(scale)}: it was scaled, as by a "
            "torch.amp.GradScaler, and a fused row_optimizer would move rows by that. Use "
            "tapas.optim.RowwiseAdagrad(head), whose step unscales, or do not scale: the head "
            "computes in float32."
        ):
            (call(*batch()) * scale).sum().backward()
    assert torch.equal(head.table.weight, before)
    assert head.table.num_updates == 0


def test_a_weighted_loss_moves_fused_rows_by_its_weight():
    """Two classes, one of them the target: the gradients of biases are p - 1 and p."""
    head = tapas.TapasSoftmax(2, D, num_samples=2, row_optimizer=SGD.fused(lr=1.0))
    (head(torch.zeros(B, D), torch.zeros(B).long()) * 4095).backward()
    torch.testing.assert_close(head.table.bias, torch.tensor([2047.5, -2047.5]))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_head_inside_torch_checkpoint_is_refused(use_reentrant, fused):
    head = head_of(RowwiseAdagrad.fused(lr=0.1) if fused else None)
    before = head.table.weight.clone()
    x, target = batch()
    x.requires_grad_()
    for call in (head, head.sampled_log_prob):
        loss = torch.utils.checkpoint.checkpoint(call, x, target, use_reentrant=use_reentrant)
        with says(
            "the head was called inside of a backward pass, as torch.utils.checkpoint does: it "
            "would draw other classes than the first time. Checkpoint the encoder, not the head, "
            "which keeps no (B, C) scores."
        ):
            loss.sum().backward()
    assert torch.equal(head.table.weight, before)
    assert not head.table.gradients.has_unapplied
    head(x, target).backward()  # the head still works
    assert fused != head.table.gradients.has_unapplied
    assert fused != torch.equal(head.table.weight, before)


def test_looking_up_fused_rows_inside_a_backward_pass_is_refused():
    table = tapas.LocalTable(C, D, row_optimizer=SGD.fused(lr=0.1))
    x = draw(3, D).requires_grad_()
    out = torch.utils.checkpoint.checkpoint(
        lambda x: x * table.lookup(torch.arange(3)), x, use_reentrant=False
    )
    with pytest.raises(UsageError, match="were looked up inside a backward pass"):
        out.sum().backward()
