"""The recurrence of a GRU layer on a CPU, forward and backward, over sequences without padding.

    r, z = sigmoid(W_ir x + b_ir + W_hr h + b_hr), sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n    = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h'   = n + z (h - n)

as nn.GRU has it, which this is tested against. Only what needs the state before it is computed
step by step; all else, and all gradients of weights, are single matrix products over the events.

Events are in the order of time: those of step t come after those of step t-1, each in the same
order of sequences, the longest first. So the sequences that go on are always the first ones.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tapas.encoders.base import Places


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """The events of `Places`, which come sequence after sequence, in the order of time."""

    sizes: list[int]  # number of sequences that have a step t, for each t
    order: Tensor  # (N,) the events in the order of time
    inverse: Tensor  # (N,) where each event is in that order
    before: Tensor  # (N - sizes[0],) the event before each one but the first, in that order

    @classmethod
    def of(cls, places: Places) -> Self:
        lengths, width = places.lengths, places.width
        by_length = lengths.argsort(descending=True, stable=True)
        rank = torch.empty_like(by_length)
        rank[by_length] = torch.arange(len(lengths))
        step = torch.arange(width)
        count = (lengths[:, None] > step).sum(dim=0)  # of sequences at each step
        begins = count.cumsum(0) - count
        at = places.index % width
        inverse = begins[at] + rank[places.index // width]
        order = torch.empty_like(inverse)
        order[inverse] = torch.arange(len(inverse))
        sizes = [size for size in count.tolist() if size]
        first = sizes[0] if sizes else 0
        later = at[order[first:]]  # the step of each event but the first ones
        before = torch.arange(first, len(order)) - count[later - 1]
        return cls(sizes, order, inverse, before)


def gru_layer(rows: Tensor, gru: nn.GRU, layer: int, times: TimeOrder) -> Tensor:
    """States (N, H) after the events with vectors `rows` (N, D), both in the order of time."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(gru, f"{name}_l{layer}") for name in names]
    states: Tensor = _Layer.apply(rows, *weights, times)  # type: ignore[no-untyped-call]
    return states


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        w_in: Tensor,  # (3H, D): of r, z and n, one after the other
        w_state: Tensor,  # (3H, H)
        b_in: Tensor,
        b_state: Tensor,
        times: TimeOrder,
    ) -> Tensor:
        dim = w_state.shape[1]
        two = 2 * dim
        gates = rows.new_empty(len(rows), 3 * dim)  # r, z, and W_hn h + b_hn
        n = rows.new_empty(len(rows), dim)
        states = torch.empty_like(n)
        torch.addmm(b_in[:two] + b_state[:two], rows, w_in[:two].t(), out=gates[:, :two])
        gates[:, two:] = b_state[two:]
        torch.addmm(b_in[two:], rows, w_in[two:].t(), out=n)
        columns = w_state.t().contiguous()
        parts = (
            torch.split(part, times.sizes)
            for part in (gates, gates[:, :two], gates[:, :dim], gates[:, dim:two], gates[:, two:])
        )
        earlier = None
        for gate, rz, r, z, from_state, new, state in zip(
            *parts, torch.split(n, times.sizes), torch.split(states, times.sizes), strict=True
        ):
            if earlier is None:
                h = torch.zeros_like(state)
            else:
                h = earlier[: len(state)]
                gate.addmm_(h, columns)
            rz.sigmoid_()
            new.addcmul_(r, from_state).tanh_()
            torch.lerp(new, h, z, out=state)
            earlier = state
        ctx.save_for_backward(rows, w_in, w_state, gates, n, states)
        ctx.times = times
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rows, w_in, w_state, gates, n, states = ctx.saved_tensors
        times, dim = ctx.times, w_state.shape[1]
        first = len(rows) - len(times.before)
        h = torch.zeros_like(states)  # before each event
        torch.index_select(states, 0, times.before, out=h[first:])
        r, z, from_state = torch.split(gates, dim, dim=1)

        # what the gradient of a state is multiplied by to give those of W_hn h, r, z and n before
        # the activations; then, step by step from the end, these gradients themselves
        slopes = rows.new_empty(len(rows), 4 * dim)
        to_state, to_r, to_z, to_n = torch.split(slopes, dim, dim=1)
        torch.addcmul(n.new_ones(()), n, n, value=-1, out=to_n)
        to_n.addcmul_(to_n, z, value=-1)
        torch.mul(to_n, r, out=to_state)
        torch.mul(to_state, from_state, out=to_r)
        to_r.addcmul_(to_r, r, value=-1)
        torch.sub(h, n, out=to_z)
        to_z.mul_(z)
        to_z.addcmul_(to_z, z, value=-1)

        grad = grads[0].clone(memory_format=torch.contiguous_format)
        turned = torch.cat([w_state[2 * dim :], w_state[: 2 * dim]])  # n, r, z, as in `slopes`
        blocks, pulls, kept, of_states = (
            torch.split(part, times.sizes)
            for part in (slopes.view(-1, 4, dim), slopes[:, : 3 * dim], z, grad)
        )
        for t in range(len(times.sizes) - 1, -1, -1):
            here = of_states[t]
            blocks[t].mul_(here[:, None])
            if t:
                earlier = of_states[t - 1][: len(here)]
                earlier.addcmul_(here, kept[t]).addmm_(pulls[t], turned)
        w_state_grad = slopes[first:, : 3 * dim].t() @ h[first:]
        sums = slopes.sum(dim=0)
        of_input = slopes[:, dim:]
        return (
            of_input @ w_in,
            of_input.t() @ rows,
            torch.cat([w_state_grad[dim:], w_state_grad[:dim]]),
            sums[dim:],
            torch.cat([sums[dim : 3 * dim], sums[:dim]]),
            None,
        )
