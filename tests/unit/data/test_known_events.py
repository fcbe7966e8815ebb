"""The events that another system may know: everything before the points, and nothing after."""

import numpy as np
import pytest
from oracle.command_line import chain_log

from tapas.data.known_events import known_events
from tapas.data.splits import SplitConfig, split_log


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return chain_log(tmp_path_factory.mktemp("log"), num_users=29, num_items=37, num_baskets=9)


@pytest.mark.parametrize("kind", ["time", "last", "group"])
@pytest.mark.parametrize("split_name", ["test", "validation"])
def test_all_events_before_the_points_are_known(log, kind, split_name):
    split = split_log(log, SplitConfig(kind=kind))
    held_out = getattr(split, split_name)
    found = known_events(log, split, held_out[:2], split_name=split_name)
    rows = list(zip(found["user"], found["item"], found["time"].to_list(), strict=True))
    point = dict(zip(held_out.user.tolist(), held_out.point.tolist(), strict=True))
    validation = dict(zip(split.validation.user.tolist(), split.validation.limit, strict=True))
    want = []
    for user in range(log.num_users):
        end = split.train_end[user]
        if split_name == "test":
            end = max(end, validation.get(user, 0))
        end = max(end, point.get(user, 0))
        for event in range(log.offsets[user], end):
            keys = log.user_keys.key(user), log.item_keys.key(int(log.items[event]))
            want.append((*keys, int(log.times[event])))
    assert rows == want
    judged = {
        user for user, is_judged in zip(found["user"], found["judged"], strict=True) if is_judged
    }
    assert judged == set(log.user_keys.keys(held_out.user[:2]))
    if kind == "time":  # nothing from behind the cut
        cut = split.cuts[split_name == "test"]
        assert max(found["time"]) < cut
        assert len(rows) == int(np.sum(np.asarray(log.times) < cut))
