"""A table on several ranks that is used like a table of one process.

Rank 0 is this process. The others make each of its calls at the same time, as a meeting wants
it, with no ids and no examples of their own, and are asked for their rows only when all are to
be looked at.
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


@contextmanager
def group(rank, size, file):
    """A gloo group for the length of the block, without any left behind."""
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
def mirrored(num_ranks, num_classes, dim):
    """Yields a function of the row optimizer that builds tables on so many ranks."""
    others = followers(num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        others.tell("open", f"{folder}/store")
        with group(0, num_ranks, f"{folder}/store"):
            others.heard()
            yield partial(Mirrored, others, num_classes, dim)
            others.tell("close")
        others.heard()


@cache
def followers(num_ranks):
    return Followers(num_ranks)


class Followers:
    """The other ranks; they live as long as this process does."""

    def __init__(self, num_ranks):
        self.num_ranks, self.pipes, self.waiting = num_ranks, [], False
        for rank in range(1, num_ranks):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=follow, args=(rank, num_ranks, there), daemon=True)
            process.start()
            there.close()  # so that a dead follower is heard
            self.pipes.append(here)

    def tell(self, command, *args):
        self.heard()
        if command == "open":
            self.tables, self.graphs = count(), count()
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((command, args)))
        self.waiting = True

    def heard(self):
        """What each of them has to say to the last command."""
        if not self.waiting:
            return []
        self.waiting = False
        answers = [pickle.loads(pipe.recv_bytes()) for pipe in self.pipes]
        failures = [failure for failure, _ in answers if failure]
        if failures:
            raise AssertionError("\n".join(failures))
        return [answer for _, answer in answers]


def follow(rank, num_ranks, pipe):
    torch.set_num_threads(1)
    follower = Follower(rank, num_ranks)
    while True:
        command, args = pickle.loads(pipe.recv_bytes())
        failure = answer = None
        try:
            answer = getattr(follower, command)(*args)
        except (PeerError, UsageError):
            pass  # refused by rank 0, whose error it is, or by all ranks alike
        except BaseException:
            failure = f"rank {rank}, {command}{args}:\n{traceback.format_exc()}"
        pipe.send_bytes(pickle.dumps((failure, answer)))


class Follower:
    """What a rank does that makes every call of rank 0."""

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
        outputs = getattr(self.tables[number], verb)(*args, **options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if any(isinstance(out, torch.Tensor) and out.requires_grad for out in outputs):
            self.graphs.append(outputs)

    def select(self, number, generator, args, options):
        if isinstance(generator, torch.Tensor):
            generator = torch.Generator().set_state(generator)
        self.tables[number].select(*args, generator=generator, **options)

    def backward(self, graph):
        sum(out.sum() for out in self.graphs[graph]).backward()

    def enter(self, number):
        block = self.tables[number].accumulate()
        block.__enter__()
        self.blocks.append(block)

    def leave(self, error):
        with suppress(KeyError):
            self.blocks.pop().__exit__(KeyError if error else None, None, None)

    def state(self, number):
        return dict(self.tables[number].state_dict())

    def load(self, number, states):
        self.tables[number].load_state_dict(states[self.rank])


class Mirrored:
    """The verbs of `ClassTable`, each told to the other ranks first."""

    exact_reads = ShardedTable.exact_reads

    def __init__(self, others, num_classes, dim, optimizer):
        others.tell("build", num_classes, dim, optimizer)
        self.table = ShardedTable(num_classes, dim, row_optimizer=optimizer)
        self.others, self.number = others, next(others.tables)
        self.num_ranks = others.num_ranks
        self.no_ids, self.no_query = torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
        self.device, self.flush, self.close = self.table.device, self.table.flush, self.table.close

    def _tell(self, verb, *args, **options):
        self.others.tell("call", self.number, verb, args, options)

    def rows(self, ids):
        self._tell("rows", self.no_ids)
        return self.table.rows(ids)

    def read(self, ids):
        self._tell("read", self.no_ids)
        return self.table.read(ids)

    def update(self, ids, weight_grad, bias_grad):
        self._tell("update", self.no_ids, self.no_query, torch.empty(0))
        self.table.update(ids, weight_grad, bias_grad)

    def write(self, ids, weight_grad, bias_grad):
        self._tell("write", self.no_ids, self.no_query, torch.empty(0))
        self.table.write(ids, weight_grad, bias_grad)

    def top(self, query, k, *, exclude=None):
        self._tell("top", self.no_query, k)
        return self.table.top(query, k, exclude=exclude)

    def log_partition(self, query):
        self._tell("log_partition", self.no_query)
        return self.table.log_partition(query)

    def select(self, *args, generator, **options):
        drawn = generator.get_state() if isinstance(generator, torch.Generator) else generator
        self.others.tell("select", self.number, drawn, args, options)
        return self.table.select(*args, generator=generator, **options)

    def lookup(self, ids):
        self._tell("lookup", self.no_ids)
        rows = self.table.lookup(ids)
        return self._told(rows)[0] if rows.requires_grad else rows

    def live_rows(self, ids):
        self._tell("live_rows", self.no_ids)
        rows = self.table.live_rows(ids)
        return self._told(*rows) if rows[0].requires_grad else rows

    def sampled_logits(self, query, target, kept):
        self._tell("sampled_logits", self.no_query, target[:0], kept)
        return self._told(*self.table.sampled_logits(query, target, kept))

    def _told(self, *outputs):
        """`outputs` whose backward pass takes the others along.

        Rows move by the gradient of the mean of all ranks' losses: the loss of one process is
        that mean if rank 0 has as many times the loss.
        """
        tell = partial(self.others.tell, "backward", next(self.others.graphs))
        return Told.apply(tell, self.others.num_ranks, *outputs)

    @contextmanager
    def accumulate(self):
        self.others.tell("enter", self.number)
        with self.table.accumulate():
            try:
                yield
            except BaseException:
                self.others.tell("leave", True)
                raise
            self.others.tell("leave", False)

    def requires_grad_(self, requires_grad):
        self._tell("requires_grad_", requires_grad)
        self.table.requires_grad_(requires_grad)
        return self

    def state_dict(self):
        """Of all ranks, class by class."""
        self.others.tell("state", self.number)
        states = [dict(self.table.state_dict()), *self.others.heard()]
        whole = {}
        for name, mine in states[0].items():
            if not isinstance(mine, torch.Tensor):  # of all ranks, hence of none
                whole[name] = {key: value for key, value in mine.items() if key != "rank"}
            else:
                parts = torch.cat([state[name] for state in states])
                whole[name] = torch.empty_like(parts)
                whole[name][torch.cat(self._ids())] = parts
        return whole

    def load_state_dict(self, whole):
        states = [
            {k: v[ids] if isinstance(v, torch.Tensor) else v for k, v in whole.items()}
            for ids in self._ids()
        ]
        self.others.tell("load", self.number, states)
        self.table.load_state_dict(states[0])

    def _ids(self):
        return [self.table.placement.ids_of(rank) for rank in range(self.others.num_ranks)]


class Told(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tell, num_ranks, *outputs):
        ctx.tell, ctx.num_ranks = tell, num_ranks
        return tuple(out.view_as(out) for out in outputs)

    @staticmethod
    def backward(ctx, *grads):
        ctx.tell()
        return None, None, *(ctx.num_ranks * grad for grad in grads)
