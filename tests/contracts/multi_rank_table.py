"""A table on several ranks that is used like a table of one process, and its optimizer.

Rank 0 is this process. The other ranks make the same calls at the same time, as collectives
require, but without ids and examples. They send their rows only for tests that compare all rows.
"""

import os
import pickle
import tempfile
import traceback
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from itertools import count
from unittest import mock

import torch
import torch.distributed as dist
from ranks import CONTEXT

from tapas import PeerError, ShardedTable, UsageError

TIMEOUT_SECONDS = 30
NO_TARGETS = torch.empty(0, 1, dtype=torch.int64)


@contextmanager
def group(rank, size, file):
    """A gloo group for the length of the context."""
    with mock.patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo"):
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(file, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=TIMEOUT_SECONDS),
        )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def multi_rank_tables(num_ranks, num_classes, dim):
    """Yields a function that builds tables on `num_ranks` ranks, fused or not."""
    others = followers(num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        others.send("open", f"{folder}/store")
        with group(0, num_ranks, f"{folder}/store"):
            others.answers()
            yield partial(MultiRankTable, others, num_classes, dim)
            others.send("close")
        others.answers()


@cache
def followers(num_ranks):
    return Followers(num_ranks)


class Followers:
    """The other ranks; they end with this process."""

    def __init__(self, num_ranks):
        self.num_ranks, self.pipes, self.waiting = num_ranks, [], False
        for rank in range(1, num_ranks):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=follow, args=(rank, num_ranks, there), daemon=True)
            process.start()
            there.close()  # so that the death of a follower is noticed
            self.pipes.append(here)

    def send(self, command, *args):
        self.answers()
        if command == "open":
            self.tables, self.graphs = count(), {}
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((command, args)))
        self.waiting = True

    def answers(self):
        """The answer of each follower to the last command."""
        if not self.waiting:
            return []
        self.waiting = False
        replies = [pickle.loads(pipe.recv_bytes()) for pipe in self.pipes]
        failures = [failure for failure, _ in replies if failure]
        if failures:
            raise AssertionError("\n".join(failures))
        return [answer for _, answer in replies]


def follow(rank, num_ranks, pipe):
    torch.set_num_threads(1)
    follower = Follower(rank, num_ranks)
    while True:
        command, args = pickle.loads(pipe.recv_bytes())
        failure = answer = None
        try:
            answer = getattr(follower, command)(*args)
        except (PeerError, UsageError):
            pass  # rank 0 raises the same error
        except BaseException:
            failure = f"rank {rank}, {command}{args}:\n{traceback.format_exc()}"
        pipe.send_bytes(pickle.dumps((failure, answer)))


class Follower:
    """A rank that repeats every call of rank 0."""

    def __init__(self, rank, num_ranks):
        self.rank, self.num_ranks = rank, num_ranks

    def open(self, file):
        self.tables, self.graphs, self.blocks = [], [], []
        self.group = group(self.rank, self.num_ranks, file)
        self.group.__enter__()

    def close(self):
        self.group.__exit__(None, None, None)

    def build(self, num_classes, dim, optimizer):
        self.tables.append(ShardedTable(num_classes, dim, row_optimizer=optimizer))

    def call(self, number, verb, args, options):
        self._keep_graph(getattr(self.tables[number], verb)(*args, **options))

    def _keep_graph(self, outputs):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if any(isinstance(out, torch.Tensor) and out.requires_grad for out in outputs):
            self.graphs.append(outputs)

    def sampled_logits(self, number, dim, *args):
        """Make the call with a batch that has no examples of this rank."""
        table = self.tables[number]
        batch = table.ranks.batch(torch.empty(0, dim), NO_TARGETS, gradients=table.gradients)
        self._keep_graph(table.sampled_logits(batch, *args))

    def backward(self, graphs):
        """One backward pass over all graphs, newest first, as on rank 0."""
        sum(out.sum() for graph in graphs for out in self.graphs[graph]).backward()

    def enter(self, number):
        block = self.tables[number].accumulate()
        block.__enter__()
        self.blocks.append(block)

    def leave(self, error):
        with suppress(KeyError):
            self.blocks.pop().__exit__(KeyError if error else None, None, None)

    def load(self, number, states):
        self.tables[number].load_state_dict(states[self.rank])

    def run(self, number, function, args):
        return function(self.tables[number], *args)


# Functions of the table of one rank; see `MultiRankTable.on_every_rank`.


def attach(table, kind, numbers):
    """Keep the optimizer alive: tables refer to it weakly."""
    table.stepper = kind(table, **numbers)


def step(table):
    table.stepper.step()


def zero_grad(table):
    table.stepper.zero_grad()


def state_of(table):
    return dict(table.state_dict())


def row_state_of(table):
    """The state that the queue of these rows holds for its optimizer."""
    return dict(table.gradients.state)


def optimizer_state_of(table):
    """The same state as the optimizer holds it, for comparison."""
    return dict(table.stepper.state.get(table.gradients.anchor, {}))


def queued_gradients_of(table):
    """Queued gradients (N, D) and (N,) of the rows here; None if there are none."""
    if (found := table.gradients.summed()) is None:
        return None
    weight = torch.zeros(table.num_rows, table.dim).index_copy_(0, found.ids, found.weight)
    return weight, torch.zeros(table.num_rows).index_copy_(0, found.ids, found.bias)


def anchor_grad_of(table):
    grad = table.gradients.anchor.grad
    return None if grad is None else float(grad)


def scale_anchor(table, factor):
    table.gradients.anchor.grad.mul_(factor)


RANK = -3  # index of the rank in the numbers of a ShardedTable's state


def with_rank(numbers, rank):
    numbers = numbers.clone()
    numbers[RANK] = rank
    return numbers


class MultiRankTable:
    """The methods of `ClassTable`; each is first sent to the other ranks."""

    def __init__(self, others, num_classes, dim, formula, fused=True):
        optimizer = formula if fused else None
        others.send("build", num_classes, dim, optimizer)
        self.table = ShardedTable(num_classes, dim, row_optimizer=optimizer)
        self.others, self.number = others, next(others.tables)
        self.num_ranks = others.num_ranks
        self.no_ids, self.no_query = torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
        self.device, self.flush, self.close = self.table.device, self.table.flush, self.table.close

    def _send(self, verb, *args, **options):
        self.others.send("call", self.number, verb, args, options)

    def rows(self, ids):
        self._send("rows", self.no_ids)
        return self.table.rows(ids)

    def update(self, ids, weight_grad, bias_grad):
        self._send("update", self.no_ids, self.no_query, torch.empty(0))
        self.table.update(ids, weight_grad, bias_grad)

    def topk(self, query, k, *, exclude=None):
        self._send("topk", self.no_query, k)
        return self.table.topk(query, k, exclude=exclude)

    def topk_log_prob(self, query, k, *, exclude=None, scale=1.0):
        self._send("topk_log_prob", self.no_query, k, scale=scale)
        return self.table.topk_log_prob(query, k, exclude=exclude, scale=scale)

    def log_partition(self, query, *, scale=1.0):
        self._send("log_partition", self.no_query, scale=scale)
        return self.table.log_partition(query, scale=scale)

    def select(self, pool, second_pass):
        self._send("select", pool, second_pass)
        return self.table.select(pool, second_pass)

    def lookup(self, ids, *, return_bias=False):
        self._send("lookup", self.no_ids, return_bias=return_bias)
        rows = self.table.lookup(ids, return_bias=return_bias)
        parts = rows if return_bias else (rows,)
        if parts[0].requires_grad:
            parts = self._with_backward(*parts)
        return parts if return_bias else parts[0]

    def sampled_logits(self, batch, *args):
        """`batch` is that of this rank, which gathers it as a head does; the others have none."""
        table = self.table
        self.others.send("sampled_logits", self.number, table.dim, *args)
        gathered = table.ranks.batch(batch.query, batch.target, gradients=table.gradients)
        answers = table.sampled_logits(gathered, *args)
        return self._with_backward(*answers) if answers[0].requires_grad else answers

    def sampled_costs(self, batch, pool, *, counted, factor=None):
        table = self.table
        self.others.send("sampled_logits", self.number, table.dim, pool)
        gathered = table.ranks.batch(batch.query, batch.target, gradients=table.gradients)
        return self._with_backward(
            table.sampled_costs(gathered, pool, counted=counted, factor=factor)
        )[0]

    def _with_backward(self, *outputs):
        """`outputs` whose backward pass also runs on the other ranks.

        Rows move by the gradient of the mean of all ranks' losses. Other ranks have no loss, so
        that of rank 0 is multiplied by the number of ranks.
        """
        graphs = self.others.graphs
        outputs = BackwardOnAllRanks.apply(self.others, *outputs)
        graphs[len(graphs)] = outputs[0].grad_fn
        return outputs

    def attach(self, kind, numbers):
        self.on_every_rank(attach, kind, numbers)
        return OptimizersOfAllRanks(self)

    def on_every_rank(self, function, *args):
        """The results of `function` for the table of each rank."""
        self.others.send("run", self.number, function, args)
        return [function(self.table, *args), *self.others.answers()]

    def by_class(self, parts):
        """(C, ...) by class, of tensors by row of every rank."""
        parts = torch.cat(parts)
        return torch.empty_like(parts).index_copy_(0, torch.cat(self._ids()), parts)

    @contextmanager
    def accumulate(self):
        self.others.send("enter", self.number)
        with self.table.accumulate():
            try:
                yield
            except BaseException:
                self.others.send("leave", True)
                raise
            self.others.send("leave", False)

    def requires_grad_(self, requires_grad):
        self._send("requires_grad_", requires_grad)
        self.table.requires_grad_(requires_grad)
        return self

    def state_dict(self):
        """The states of all ranks by class, without rank and layout."""
        return self.merge_states(self.on_every_rank(state_of))

    def merge_states(self, states):
        """One state from those of all ranks, which may differ only in the rank."""
        merged = {}
        for name, mine in states[0].items():
            parts = [state[name] for state in states]
            if name == "layout":  # in an optimizer's state: rank and layout
                assert [int(part[0]) for part in parts] == list(range(self.num_ranks))
            elif name == "_extra_state":  # equal except for the rank
                assert [int(part[RANK]) for part in parts] == list(range(self.num_ranks))
                merged[name] = mine.clone()
                assert all(torch.equal(mine, with_rank(part, 0)) for part in parts)
            elif mine.dim():
                merged[name] = self.by_class(parts)
            else:
                assert all(torch.equal(mine, part) for part in parts), name
                merged[name] = mine
        return merged

    def load_state_dict(self, state):
        states = [
            {name: part[ids] for name, part in state.items() if name != "_extra_state"}
            | {"_extra_state": with_rank(state["_extra_state"], rank)}
            for rank, ids in enumerate(self._ids())
        ]
        self.others.send("load", self.number, states)
        self.table.load_state_dict(states[0])

    def _ids(self):
        return [self.table.placement.ids_of(rank) for rank in range(self.others.num_ranks)]


class OptimizersOfAllRanks:
    """The optimizers of all ranks, each for its own rows."""

    def __init__(self, table):
        self.table = table

    def step(self):
        self.table.on_every_rank(step)

    def zero_grad(self):
        self.table.on_every_rank(zero_grad)


class BackwardOnAllRanks(torch.autograd.Function):
    """Multiplies the gradient by the number of ranks; starts the pass on the other ranks."""

    @staticmethod
    def forward(ctx, others, *outputs):
        ctx.others = others
        return tuple(out.view_as(out) for out in outputs)

    @staticmethod
    def backward(ctx, *grads):
        graphs = ctx.others.graphs
        mine = [
            number
            for number, node in graphs.items()
            if node is not None and torch._C._will_engine_execute_node(node)
        ]
        if mine:  # empty after the first of this pass
            graphs.update(dict.fromkeys(mine))
            ctx.others.send("backward", mine)
        return None, *(ctx.others.num_ranks * grad for grad in grads)
