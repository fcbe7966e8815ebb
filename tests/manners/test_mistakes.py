"""What people get wrong around rows is told, with its cure, and moves nothing."""

import re
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
from contracts.heads import build
from manners.reference import B, C, D, Model, batch, draw, head_of
from torch import nn

import tapas
from tapas import UsageError
from tapas.heads import ids_of_multi_hot
from tapas.optim import SGD, Adagrad, Combined, LazyAdam, RowwiseAdagrad

NOBODY = (
    "the class rows have gradients from an earlier backward pass, and no optimizer to take them: "
    "the rows would never move. Make one beside that of the encoder, "
    "tapas.optim.RowwiseAdagrad(head, lr=0.1), and step both; or both as one, "
    "tapas.optim.Combined(...). To train no rows, head.requires_grad_(False)."
)
NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which leaves out such a step."
)

ANOTHER = (
    "another optimizer moves the table's anchor, too: it lists model.parameters(). A GradScaler "
    "would unscale the rows twice, and its zero_grad drops their gradients before they are used. "
    "Give it encoder.parameters(), or join both: "
    "tapas.optim.Combined(torch.optim.AdamW(model.parameters()), "
    "tapas.optim.RowwiseAdagrad(head))."
)


def says(words):
    return pytest.raises(UsageError, match="^" + re.escape(words) + "$")


@pytest.mark.parametrize("who", [lambda m: m.parameters(), lambda m: m.encoder.parameters()])
def test_an_optimizer_of_the_encoder_alone_is_caught_in_the_second_call(who):
    model = Model()
    optimizer = torch.optim.AdamW(who(model), lr=0.1)
    optimizer.zero_grad()
    model(*batch()).backward()
    optimizer.step()
    optimizer.zero_grad()
    with says(NOBODY):
        model(*batch(1))
    with torch.no_grad():  # evaluation goes on
        assert float(model(*batch(1))) > 0


def test_a_table_of_ones_own_that_nobody_trains_is_caught_too():
    head = tapas.TapasSoftmax(table=tapas.LocalTable(C, D), num_samples=5)
    x, target = batch()
    head(x, target).backward()
    with says(NOBODY):
        head(x, target)
    head.zero_grad()  # who only wants to look at gradients
    head(x, target)


def test_an_optimizer_that_is_gone_moves_nothing():
    model = Model()
    SGD(model, lr=0.1)
    model(*batch()).backward()
    with says(NOBODY):
        model(*batch())


def test_gradients_that_another_optimizer_has_cleared_are_told():
    """AdamW(model.parameters()) lists the anchor, too."""
    model = Model()
    dense, rows = torch.optim.AdamW(model.parameters()), SGD(model, lr=0.1)
    model(*batch()).backward()
    dense.step()
    dense.zero_grad()
    with says(ANOTHER):
        rows.step()
    joined = Combined(torch.optim.AdamW(model.parameters()), SGD(model, lr=0.1))  # as it was told
    joined.zero_grad()
    model(*batch()).backward()
    joined.step()


def test_an_optimizer_that_moves_the_anchor_too_is_told():
    """A GradScaler would divide rows by its scale once for each optimizer that lists them."""
    model = Model()
    dense, rows = torch.optim.AdamW(model.parameters()), SGD(model, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(*batch())).backward()
    scaler.step(dense)
    before = model.rows()
    with says(ANOTHER):
        scaler.step(rows)
    assert all(map(torch.equal, model.rows(), before))


def test_a_hook_on_the_anchor_is_told():
    """Not refused: hooks that only look, to log gradients, are on every parameter."""
    model = Model()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda grad: 0.01 * grad)
    words = "the anchor of the class rows has a hook, which sees a gradient of 0 and can change no"
    with pytest.warns(UserWarning, match=words):
        model(*batch())
    model(*batch())  # once is enough


def test_gradients_that_were_assigned_by_hand_are_told():
    """As by PCGrad: autograd.grad, and then p.grad = g."""
    model = Model()
    rows = SGD(model, lr=0.1)
    learned = [p for p in model.parameters() if p.requires_grad]
    for parameter, grad in zip(learned, torch.autograd.grad(model(*batch()), learned), strict=True):
        parameter.grad = grad
    with says(BY_HAND):
        rows.step()


BY_HAND = (
    "anchor.grad was set by hand: it is only the norm of the gradients of class rows, which "
    "`backward` alone brings. Change it in place, as `grad.mul_(0.5)` does, or assign the "
    "gradients of the other parameters only."
)


def learned_by(model):
    return [p for p in model.parameters() if p.requires_grad]


def stashed(model, numbers):
    """Gradients of several batches, summed by hand."""
    total = None
    for number in numbers:
        model.zero_grad()
        model(*batch(number)).backward()
        found = [p.grad.clone() for p in learned_by(model)]
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    return total


@pytest.mark.parametrize("numbers", [[0], [0, 1]])
def test_gradients_that_were_put_back_are_told_after_a_backward_pass_too(numbers):
    """As by hand-made accumulation: rows would move by the last pass, or by an old one."""
    model = Model()
    rows = SGD(model, lr=0.1)
    model(*batch(5)).backward()
    rows.step()
    found, before = stashed(model, numbers), model.rows()
    for parameter, grad in zip(learned_by(model), found, strict=True):
        parameter.grad = grad
    with says(BY_HAND):
        rows.step()
    assert all(map(torch.equal, model.rows(), before))


def test_a_gradient_that_is_halved_in_place_is_that_of_half_a_loss():
    ours, half = Model(), Model()
    for model, scale in ((ours, 1.0), (half, 0.5)):
        rows = SGD(model, lr=0.1)
        (scale * model(*batch())).backward()
        if model is ours:
            for parameter in learned_by(model):
                parameter.grad.mul_(0.5)
        rows.step()
    torch.testing.assert_close(ours.rows(), half.rows())


@pytest.mark.parametrize("with_rows", [False, True])
def test_an_update_by_hand_is_told_in_the_next_call(with_rows):
    """p.data -= lr * g, of all that autograd.grad was asked for: rows would stay as they are."""
    model = Model()
    kept = SGD(model, lr=0.1) if with_rows else None
    learned = learned_by(model)
    grads = torch.autograd.grad(model(*batch()), learned)
    for parameter, grad in zip(learned, grads, strict=True):
        parameter.data -= 0.1 * grad
    with says(ANOTHER if with_rows else NOBODY):
        model(*batch(1))
    del kept


def test_an_optimizer_of_all_parameters_is_caught_where_the_head_is_zeroed_itself():
    head = head_of()
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1)
    x, target = batch()
    head(x, target).backward()
    optimizer.step()
    head.zero_grad()
    with says(NOBODY):
        head(x, target)


def test_values_that_all_parameters_are_drawn_anew_with_are_no_optimizer():
    """for p in model.parameters(): p.uniform_(), as in many a language model."""
    model = Model()
    generator = tapas.rng.stream(0, "drawn anew")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    rows = SGD(model, lr=0.1)
    for number in range(2):
        rows.zero_grad()
        model(*batch(number)).backward()
        rows.step()


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
    """They would be 0, as if the loss were linear."""
    head = build(method, row_optimizer=None)
    x, target = draw(4, head.dim), torch.arange(4)
    with says(
        "the gradient of a head cannot be differentiated again: create_graph=True, as of a Hessian "
        "or a gradient penalty, would leave a term out. Use torch.nn.functional.cross_entropy for "
        "it."
    ):
        differentiate(head, x, target)


def test_a_head_that_is_trained_in_eval_is_told_once():
    head = tapas.TapasSoftmax(C, D, num_samples=5).eval()
    rows = SGD(head, lr=0.1)
    x, target = batch()
    head(x, target)  # to look at the loss, with gradients on, is no training
    head(x, target).backward()
    rows.step()
    words = "the head is trained in eval(): every step draws the same classes. Call model.train()"
    with pytest.warns(UserWarning, match=re.escape(words)):
        head(x, target)
    head(x, target).backward()
    head(x, target)


def test_evaluation_between_steps_of_training_is_no_training_in_eval():
    head = tapas.TapasSoftmax(C, D, num_samples=5)
    rows = SGD(head, lr=0.1)
    for number in range(3):
        rows.zero_grad()
        head.train()(*batch(number)).backward()
        rows.step()
        head.eval()(*batch(number))


def test_an_optimizer_of_optimizers_is_flat():
    model = Model()
    dense, rows = torch.optim.SGD(model.parameters(), lr=0.1), SGD(model, lr=0.1)
    joined = Combined(Combined(rows), dense)
    assert joined.optimizers == (rows, dense)
    anchor = model.head.table.gradients.anchor
    assert sum(p is anchor for group in joined.param_groups for p in group["params"]) == 1


def test_what_a_combined_optimizer_cannot_do_is_told():
    model = Model()
    joined = Combined(SGD(model))
    for name in ("state", "param_groups"):
        with says(
            f"the {name} of a Combined is that of its optimizers. Assign it to one of these, "
            f"combined.optimizers[0].{name}, or use load_state_dict."
        ):
            setattr(joined, name, [])
    with says(
        "LBFGS calls the model several times in a step, so that it cannot be joined with others. "
        "Step it apart from the optimizer of the rows."
    ):
        Combined(torch.optim.LBFGS(model.encoder.parameters()), SGD(model))


def test_rows_of_another_size_or_type_cannot_be_assigned():
    table = tapas.LocalTable(C, D)
    with says(
        f"weight has shape ({C - 1}, {D}) and torch.float32; expected ({C}, {D}) and "
        "torch.float32, as the table was built."
    ):
        table.weight = nn.Parameter(torch.zeros(C - 1, D), requires_grad=False)
    with says(
        f"bias has shape ({C},) and torch.float16; expected ({C},) and torch.float32, as the table "
        "was built."
    ):
        table.bias = nn.Parameter(torch.zeros(C).half(), requires_grad=False)


def test_the_last_optimizer_made_for_rows_is_the_one_that_moves_them():
    """In a notebook a cell is run twice."""
    model = Model()
    first = SGD(model, lr=0.1)
    second = RowwiseAdagrad(model, lr=0.1)
    model(*batch()).backward()
    before = model.rows()
    with says(
        "the rows of this SGD have another optimizer by now, a RowwiseAdagrad that was made later. "
        "Step that one."
    ):
        first.step()
    assert all(map(torch.equal, model.rows(), before))
    second.step()
    assert not torch.equal(model.rows()[0], before[0])


def test_one_table_in_two_groups_of_one_optimizer_is_refused_by_torch():
    model = Model()
    with pytest.raises(ValueError, match="more than one parameter group"):
        SGD([{"params": model.head}, {"params": model}])


def test_an_optimizer_of_another_head_leaves_this_one_alone():
    model, other = Model(), Model()
    optimizer = SGD(other, lr=0.1)
    model(*batch()).backward()
    before = other.rows()
    optimizer.step()
    assert all(map(torch.equal, other.rows(), before))
    with says(NOBODY):
        model(*batch())


def test_what_has_no_rows_is_told():
    model = Model()
    for given in (model.parameters(), model.head.table.gradients.anchor):
        with says(
            "SGD moves the rows of heads and tables, got Parameter. Pass the head itself, not its "
            "parameters."
        ):
            SGD(given, lr=0.1)
    with says("LazyAdam was given no head and no class table: it has no rows to move."):
        LazyAdam(model.encoder)
    with says("Combined joins optimizers, got TapasSoftmax. Build each one first."):
        Combined(model.head)
    rows = SGD(model)
    for given in ((), (rows, rows)):
        with says("Combined needs optimizers, each once."):
            Combined(*given)
    with says("add the group to one of the optimizers that were combined."):
        Combined(SGD(model)).add_param_group({"params": []})


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda m: SGD(m, lr=-1), "SGD.lr must be a finite number of at least 0, got -1."),
        (lambda m: Adagrad(m, lr=float("nan")), "Adagrad.lr must be a finite number of at least 0"),
        (lambda m: RowwiseAdagrad(m, eps=0), "RowwiseAdagrad.eps must be a finite number above 0"),
        (lambda m: SGD(m, lr="0.1"), "SGD.lr must be a finite number of at least 0, got '0.1'."),
        (lambda m: LazyAdam(m, betas=(0.9, 1.0)), "LazyAdam.betas must be two numbers in [0, 1)"),
        (
            lambda m: LazyAdam(m, betas=0.9),
            "LazyAdam.betas must be two numbers in [0, 1), got",
        ),
    ],
)
def test_bad_numbers_are_told(build, words):
    with pytest.raises(UsageError, match="^" + re.escape(words)):
        build(Model())


def test_rows_that_move_in_backward_take_no_optimizer():
    model = Model(head_of(SGD.fused(lr=0.5)))
    with says(
        "these rows move in `backward` already, by SGD(lr=0.5, weight_decay=0.0). Leave "
        "row_optimizer out of the head to have an optimizer move them."
    ):
        RowwiseAdagrad(model)


def test_a_torch_optimizer_is_no_fused_update():
    with says(
        "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), or "
        "None for rows that an optimizer of tapas.optim moves, got 0.1."
    ):
        tapas.LocalTable(C, D, row_optimizer=0.1)


class TestSwappingTheFusedUpdate:
    """`head.table.row_optimizer = ...` once overflowed the heap."""

    def test_another_state_is_refused(self):
        table = tapas.TapasSoftmax(
            2000, 64, num_samples=5, row_optimizer=RowwiseAdagrad.fused()
        ).table
        for other in (Adagrad.fused(lr=0.05), LazyAdam.fused(), SGD.fused()):
            with says(
                f"the rows have the state of RowwiseAdagrad, which {other.name} cannot go on from. "
                "Build the table with it; `table.row_optimizer.lr = 0.05` changes a number."
            ):
                table.row_optimizer = other
        assert table.row_optimizer == RowwiseAdagrad.fused()

    def test_the_same_state_and_another_number_are_taken(self):
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
    def test_whether_rows_wait_is_decided_when_the_table_is_built(self, before, after):
        table = tapas.LocalTable(C, D, row_optimizer=before)
        with pytest.raises(UsageError, match="whether rows move in `backward` is decided when"):
            table.row_optimizer = after

    @pytest.mark.parametrize("kernels", ["native", "torch"])
    def test_a_state_that_was_assigned_in_another_shape_moves_nothing(self, kernels):
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

    def test_kernels_refuse_a_state_of_another_shape(self):
        if tapas.native.state() != "in use on CPUs":
            pytest.skip("no kernels")
        rows, state = torch.zeros(7, 4), torch.zeros(7, 1)
        with says(
            "the row optimizer's state has shapes [(7, 1)]; expected [(7, 4)] for rows of shape "
            "(7, 4). No row was changed."
        ):
            tapas.native.update(
                1, (0.1, 0.0, 1e-8), rows, torch.tensor([3]), torch.ones(1, 4), [state]
            )


def stepped(kind, size=C, **options):
    head = tapas.TapasSoftmax(size, D, num_samples=5)
    optimizer = kind(head, **options)
    x, target = batch()
    head(x, target).backward()
    optimizer.step()
    return head, optimizer


def test_the_state_of_another_kind_of_optimizer_is_refused_and_nothing_is_loaded():
    _, adam = stepped(LazyAdam)
    head, adagrad = stepped(Adagrad, lr=0.3)
    before = {k: v.clone() for k, v in head.table.gradients.state.items()}
    with says(
        "this state is not that of a Adagrad: it lacks initial_sum. Load it into the kind of "
        "optimizer that has saved it. Nothing was loaded."
    ):
        adagrad.load_state_dict(adam.state_dict())
    _, rowwise = stepped(RowwiseAdagrad)
    with pytest.raises(UsageError, match=r"this state is not that of a Adagrad for these rows"):
        adagrad.load_state_dict(rowwise.state_dict())
    assert adagrad.param_groups[0]["lr"] == 0.3
    assert all(torch.equal(before[k], v) for k, v in head.table.gradients.state.items())


def test_the_state_of_a_table_of_another_size_is_refused():
    _, one = stepped(Adagrad)
    _, two = stepped(Adagrad, size=C + 1)
    with pytest.raises(
        UsageError, match=rf"'weight_sum': \({C}, {D}\).*expected.*\({C + 1}, {D}\)"
    ):
        two.load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="this state has 1 parameter groups; expected 2, those of"):
        Combined(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), two).load_state_dict(
            one.state_dict()
        )


def test_state_that_was_tampered_with_is_refused_before_a_row_moves():
    head, optimizer = stepped(Adagrad)
    optimizer.state[head.table.gradients.anchor]["bias_sum"] = torch.zeros(3, 1)
    before = head.table.weight.clone()
    head(*batch()).backward()
    with pytest.raises(UsageError, match=r"this state is not that of a Adagrad for these rows"):
        optimizer.step()
    assert torch.equal(head.table.weight, before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_moves_no_row_of_any_table(value):
    good, bad = Model(), Model()
    optimizer = SGD([good, bad], lr=0.1)
    good(*batch()).backward()
    (bad(*batch()) * value).backward()
    before = [model.rows() for model in (good, bad)]
    with says(NOT_FINITE):
        optimizer.step()
    for model, rows in zip((good, bad), before, strict=True):
        assert all(map(torch.equal, model.rows(), rows))


def test_one_table_with_bad_state_keeps_all_others_from_moving():
    good, bad = Model(), Model()
    optimizer = Adagrad([good, bad], lr=0.1)
    for model in (good, bad):
        model(*batch()).backward()
    optimizer.step()
    optimizer.state[bad.head.table.gradients.anchor]["weight_sum"] = torch.zeros(2, D)
    before = good.rows()
    with pytest.raises(UsageError, match="this state is not that of a Adagrad for these rows"):
        optimizer.step()
    assert all(map(torch.equal, good.rows(), before))


def test_a_refused_optimizer_leaves_the_present_one_as_it_was():
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    optimizer.step()
    with pytest.raises(UsageError, match="was given no head and no class table"):
        Adagrad([{"params": model}, {"params": nn.utils.skip_init(nn.Linear, 1, 1)}])
    optimizer.step()
    assert int(optimizer.state[model.head.table.gradients.anchor]["step"]) == 2


def test_rows_go_back_to_the_optimizer_that_is_left():
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    optimizer.step()
    SGD(model, lr=0.1)  # made and dropped
    optimizer.step()
    assert int(optimizer.state[model.head.table.gradients.anchor]["step"]) == 2


def test_an_older_optimizer_that_loads_a_state_leaves_the_newer_ones_alone():
    model = Model()
    older, newer = Adagrad(model, lr=0.1), Adagrad(model, lr=0.1)
    model(*batch()).backward()
    newer.step()
    older.load_state_dict(older.state_dict())
    newer.step()
    assert int(newer.state[model.head.table.gradients.anchor]["step"]) == 2


def test_a_state_that_was_reset_begins_anew():
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    optimizer.step()
    optimizer.state = defaultdict(dict)
    optimizer.step()
    assert int(optimizer.state[model.head.table.gradients.anchor]["step"]) == 1


def test_a_first_step_that_runs_out_of_memory_can_be_made_again(monkeypatch):
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    model(*batch()).backward()
    with monkeypatch.context() as patched:
        patched.setattr(type(model.head.table), "_new_state", no_memory)
        with pytest.raises(MemoryError):
            optimizer.step()
    optimizer.step()
    assert model.head.table.num_updates == 1


def no_memory(*_):
    raise MemoryError


def test_a_parametrized_table_is_told():
    head = head_of()
    nn.utils.parametrize.register_parametrization(head.table, "weight", nn.Identity())
    with pytest.raises(UsageError, match="the rows of a class table cannot be parametrized"):
        head(*batch())


def test_fused_rows_are_not_looked_up_inside_of_a_backward_pass():
    table = tapas.LocalTable(C, D, row_optimizer=SGD.fused(lr=0.1))
    x = draw(3, D).requires_grad_()
    out = torch.utils.checkpoint.checkpoint(
        lambda x: x * table.lookup(torch.arange(3)), x, use_reentrant=False
    )
    with pytest.raises(UsageError, match="were looked up inside of a backward pass"):
        out.sum().backward()


GROUP = "a group of SGD must be a dict with 'params', a head or a table, got "


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: SGD(None),
            "SGD moves the rows of heads and tables, got NoneType. Pass the head itself, not its "
            "parameters.",
        ),
        (lambda: SGD([{"lr": 1.0}]), GROUP + "{'lr': 1.0}."),
        (lambda: SGD([{"params": Model()}, Model()]), GROUP + "a Model."),
        (
            lambda: SGD(Model(), lr=torch.ones(2)),
            "SGD.lr must be a finite number of at least 0, got tensor([1., 1.]).",
        ),
        (
            lambda: SGD(Model(), lr=1e39),
            "SGD.lr must be a finite number of at least 0, got 1e+39, which float32 cannot hold.",
        ),
        (
            lambda: Adagrad(Model(), eps=1e-46),
            "Adagrad.eps must be a finite number above 0, got 1e-46, which float32 cannot hold.",
        ),
        (
            lambda: head_of()(*batch(), [1.0] * B),
            "target_weight must be a torch.Tensor, got list. torch.as_tensor makes one.",
        ),
        (
            lambda: head_of()(*batch(), context=[1] * B),
            "context must be a torch.Tensor, got list. torch.as_tensor makes one.",
        ),
        (
            lambda: ids_of_multi_hot(torch.tensor(1)),
            "multi_hot has shape (); expected (..., C).",
        ),
        (
            lambda: tapas.LocalTable(C, D).lookup(torch.arange(3), padding_idx="x"),
            "padding_idx must be a whole number, got 'x'.",
        ),
    ],
)
def test_what_is_plainly_wrong_gets_words(call, words):
    with says(words):
        call()


def test_kernels_are_not_given_ids_or_gradients_that_they_would_write_beyond():
    if tapas.native.state() != "in use on CPUs":
        pytest.skip("no kernels")
    rows, good = torch.zeros(7, 4), (torch.tensor([3]), torch.ones(1, 4))
    for ids, grad in (
        (torch.tensor([7]), good[1]),
        (torch.tensor([-1]), good[1]),
        (good[0].int(), good[1]),
        (torch.tensor([1, 2]), good[1]),
        (good[0], good[1].double()),
        (good[0].to("meta"), good[1]),
        (good[0], good[1].to("meta")),
    ):
        with pytest.raises(UsageError, match="gradients of rows must be float32, one for each"):
            tapas.native.update(0, (0.1, 0.0), rows, ids, grad, [])
        with pytest.raises(UsageError, match="gradients of rows must be float32, one for each"):
            tapas.native.sum_rows(ids, grad, grad[:, 0].contiguous(), 7)
    assert not bool(rows.any())


def test_kernels_are_not_given_numbers_or_biases_that_they_would_read_beyond():
    if tapas.native.state() != "in use on CPUs":
        pytest.skip("no kernels")
    rows, ids, grad = torch.zeros(7, 4), torch.tensor([3]), torch.ones(1, 4)
    with says("rule 3 has 7 numbers, got 2."):
        tapas.native.update(3, (0.1, 0.0), rows, ids, grad, [rows.clone(), rows.clone()])
    biases = tapas.native.Biases(torch.zeros(7), torch.ones(1, 1), [])
    with pytest.raises(UsageError, match="gradients of rows must be float32, one for each"):
        tapas.native.update(0, (0.1, 0.0), rows, ids, grad, [], biases)
    with pytest.raises(UsageError, match="gradients of rows must be float32, one for each"):
        tapas.native.sum_rows(ids, grad, grad[:, 0].contiguous(), -1)
    assert not bool(rows.any())


def test_a_combined_step_that_is_refused_moves_no_encoder_either():
    model = Model()
    optimizer = Combined(torch.optim.SGD(model.parameters(), lr=0.1), SGD(model, lr=0.1))
    (model(*batch()) * torch.nan).backward()
    before = model.encoder.weight.detach().clone()
    with says(NOT_FINITE):
        optimizer.step()
    assert torch.equal(model.encoder.weight.detach(), before)


def test_two_row_optimizers_step_together_or_not_at_all():
    good, bad = Model(), Model()
    optimizer = Combined(SGD(good, lr=0.1), RowwiseAdagrad(bad, lr=0.1))
    good(*batch()).backward()
    (bad(*batch()) * torch.nan).backward()
    before = good.rows()
    with says(NOT_FINITE):
        optimizer.step()
    assert all(map(torch.equal, good.rows(), before))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_bad_gradient_that_was_dropped_is_forgotten(set_to_none):
    model = Model()
    optimizer = SGD(model, lr=0.1)
    (model(*batch()) * torch.nan).backward()
    model.zero_grad(set_to_none=set_to_none)
    model(*batch(1)).backward()
    before = model.rows()
    optimizer.step()
    assert bool(model.rows()[0].isfinite().all())
    assert not torch.equal(model.rows()[0], before[0])


def test_a_gradscaler_leaves_out_a_step_that_overflows_and_goes_on():
    model = Model()
    optimizer = Combined(torch.optim.SGD(model.parameters(), lr=0.1), SGD(model, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before = model.rows()
    scaler.scale(model(*batch()) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, model.rows(), before))
    assert scaler.get_scale() == 2.0**15
    optimizer.zero_grad()
    scaler.scale(model(*batch())).backward()
    scaler.step(optimizer)
    assert not torch.equal(model.rows()[0], before[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_scaled_loss_is_refused_by_rows_that_move_at_once(reduction):
    head = head_of(RowwiseAdagrad.fused(lr=0.1), reduction=reduction)
    before = head.table.weight.clone()
    scaler = torch.amp.GradScaler("cpu")
    loss = head(*batch())
    with says(
        "the gradient that arrives at the loss is 65536: it was scaled, as by a "
        "torch.amp.GradScaler, and a fused row_optimizer would move rows by that. Use "
        "tapas.optim.RowwiseAdagrad(head), whose step unscales, or do not scale: the head computes "
        "in float32."
    ):
        scaler.scale(loss.sum()).backward()
    assert torch.equal(head.table.weight, before)
    head(*batch()).sum().mul(100.0).backward()
    assert not torch.equal(head.table.weight, before)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_head_inside_of_a_checkpoint_is_refused(use_reentrant):
    model = Model()
    SGD(model, lr=0.1)
    x, target = batch()
    loss = torch.utils.checkpoint.checkpoint(
        model, x.requires_grad_(), target, use_reentrant=use_reentrant
    )
    with says(
        "the head was called inside of a backward pass, as torch.utils.checkpoint does: it would "
        "draw other classes than the first time. Checkpoint the encoder, not the head, which keeps "
        "no (B, C) scores."
    ):
        loss.backward()


def test_a_parameter_of_another_module_cannot_become_the_rows():
    head, embedding = head_of(), nn.utils.skip_init(nn.Embedding, C, D)
    with says(
        "the weight of a class table cannot be a parameter that another module trains, too. To "
        "share rows, have the model read its inputs from the table, head.table.lookup(ids); to set "
        "them, head.table.weight.copy_(values)."
    ):
        head.table.weight = embedding.weight
    with pytest.raises(TypeError, match="cannot assign"):
        embedding.weight = head.table.weight


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_a_multi_hot_target_is_told_from_class_ids(dtype):
    head = head_of()
    target = torch.nn.functional.one_hot(batch()[1], C).to(dtype)
    with says(
        f"target has shape ({B}, {C}) and holds only 0 and 1: it looks multi-hot. Pass class ids, "
        "(..., L), padded with -100: tapas.heads.ids_of_multi_hot(target) makes them."
    ):
        head(draw(B, D), target)
    assert torch.equal(ids_of_multi_hot(target)[:, 0], batch()[1])
    head(draw(B, D), ids_of_multi_hot(target))


def test_probabilities_as_targets_are_told_what_would_do():
    with says(
        f"target has shape ({B}, {C}) and torch.float32: probabilities of all classes are not "
        "supported. Pass the ids of the few that matter, (..., L), and their probabilities as "
        "target_weight."
    ):
        head_of()(draw(B, D), torch.full((B, C), 1 / C))


def test_ids_of_a_multi_hot_tensor_are_padded():
    hot = torch.tensor([[[0, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 1, 1]]])
    want = [[[1, 2, -100], [-100] * 3], [[0, -100, -100], [0, 1, 2]]]
    assert ids_of_multi_hot(hot).tolist() == want


def test_all_classes_as_targets_are_no_multi_hot():
    head = tapas.TapasSoftmax(5, D, num_samples=2)
    head(draw(2, D), torch.arange(5).expand(2, 5))


def test_targets_of_any_integer_type_are_read_as_what_they_are():
    query, target = batch()
    want = tapas.TapasSoftmax(C, D, num_samples=5)(query, target)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(tapas.TapasSoftmax(C, D, num_samples=5)(query, target.to(dtype)), want)


@pytest.mark.parametrize("ids", [[4, 2, 7], [2, 4, 4]])
def test_candidates_that_do_not_rise_are_refused(ids):
    class Unsorted(tapas.heads.SampledSoftmax):
        def candidates(self, batch):
            return tapas.candidates.Candidates(torch.tensor(ids), torch.zeros(3))

    with says(
        "the ids of candidates must be distinct and rise: an example's own target is looked up "
        "among them. Sort them with their log_q."
    ):
        Unsorted(C, D, num_samples=3)(*batch())


def test_updates_need_something_that_moves_the_rows():
    with says(
        "nothing moves these rows yet. Make an optimizer for them, "
        "tapas.optim.RowwiseAdagrad(table, lr=0.1), or build the table with "
        "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1)."
    ):
        tapas.LocalTable(C, D).update(torch.tensor([1]), torch.ones(1, D), torch.ones(1))


def test_an_option_that_a_head_does_not_have_is_told():
    with says(
        "unknown option of SampledSoftmax 'row_optimiser'. Did you mean 'row_optimizer'? Known: "
        "bias, device, dtype, ignore_index, num_shards, reduction, row_optimizer, seed, table."
    ):
        tapas.heads.SampledSoftmax(C, D, num_samples=5, row_optimiser=None)
    with says("pass a table by its name: table=..."):
        tapas.heads.SampledSoftmax(tapas.LocalTable(C, D), num_samples=5)
