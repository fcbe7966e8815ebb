"""What the explorer's page is told: judged lists are those of `tapas evaluate`, keys are text."""

import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from web.small_runs import HARM, HOSTILE, NETWORK, NUM_ITEMS, NUM_USERS, Served, sentence

import tapas
from tapas.data.splits import split_log
from tapas.evaluation.evaluate import held_out
from tapas.evaluation.ranked_lists import ranked_lists
from tapas.training.run_evaluation import list_options, load_model
from tapas.training.run_folder import open_run
from tapas.web.explorer import OTHER_LOG

JUDGED = ("mixture", "network", "warp", "huffman", "half")


@pytest.fixture(scope="module")
def five(runs):
    """Runs of the same log, and an export."""
    return Served(*(runs[kind] for kind in (*JUDGED, "export")))


def evaluated(path, users):
    """By user key: the list that `tapas evaluate` judges, and its hits among what came next."""
    run = open_run(path)
    model, _ = load_model(run)
    split, options = split_log(run.log, run.config.split), list_options(run)
    points, target = held_out(run.log, split, options, num_targets=run.config.head.next_items)
    lists, _ = ranked_lists(model, run.log, points, target, options, with_loss=False)
    found = {}
    for user, ids, wanted in zip(points.user.tolist(), lists.numpy(), target, strict=True):
        ids = ids[ids >= 0]
        hits = set(ids.tolist()) & set(wanted[wanted >= 0].tolist())
        keys = list(map(str, run.log.item_keys.keys(ids)))
        found[str(run.log.user_keys.key(user))] = keys, len(hits)
    return {key: found[key] for key in users if key in found}


def told(served, key):
    answer = served.get("/explorer/user", params={"key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()


def judged_user(served):
    """A user with held-out events."""
    return served.get("/explorer/random-user").json()["user"]


def test_judged_lists_and_hits_are_those_of_evaluate(five, runs):
    """Events that are held out were not counted by the counting parts."""
    users = [f"u{n}" for n in range(NUM_USERS)]
    found = {key: told(five, key) for key in users}
    for place, kind in enumerate(JUDGED):
        wanted = evaluated(runs[kind], users)
        assert len(wanted) > NUM_USERS / 2
        for key, (items, hits) in wanted.items():
            mine = found[key]["lists"][place]
            assert mine["model"] == kind
            assert mine["note"] is None
            assert [each["item"] for each in mine["items"]] == items
            assert mine["hits"] == sum(each["hit"] for each in mine["items"]) == hits


def test_lists_that_are_not_judged_count_the_whole_log(five, runs):
    """So the mixture differs from what it recommends to the same user now."""
    model = tapas.load(runs["mixture"])
    differ = 0
    for key in model.users:
        now = list(map(str, model.recommend([key], k=20).items[0]))
        shown = [each["item"] for each in told(five, key)["lists"][0]["items"]]
        differ += now != shown
    assert differ > NUM_USERS / 2


def test_an_export_counted_the_whole_log_and_says_so(five):
    export = told(five, judged_user(five))["lists"][-1]
    assert (export["model"], export["note"]) == ("export", OTHER_LOG)
    assert len(export["items"]) == 20


def test_runs_with_a_merged_rare_class_are_judged_as_by_evaluate_side_by_side(runs, tmp_path):
    """The second run reads rare items of the history as rare ones, as it was trained."""
    shutil.copytree(runs["rare-mixture"], tmp_path / "second")
    both = Served(runs["rare"], tmp_path / "second")
    wanted = evaluated(tmp_path / "second", [f"u{n}" for n in range(NUM_USERS)])
    for key, (items, hits) in wanted.items():
        _, second = told(both, key)["lists"]
        assert second["note"] is None
        assert [each["item"] for each in second["items"]] == items
        assert second["hits"] == hits


def test_a_run_of_another_log_is_asked_by_keys_and_says_so(runs, tmp_path):
    """Its ids are others, and it does not know all items."""
    frame = pl.read_parquet(runs.log_of("network")).filter(pl.col("item_id") < 1030)
    frame.reverse().write_parquet(tmp_path / "part.parquet")
    runs.train(tmp_path / "part", tmp_path / "part.parquet", *NETWORK)
    both = Served(runs["network"], tmp_path / "part")
    other = tapas.load(tmp_path / "part")
    found = told(both, "u4")
    assert [each["note"] for each in found["lists"]] == [None, OTHER_LOG]
    history = [int(each["item"]) for each in found["history"] if int(each["item"]) < 1030]
    wanted = other.recommend([history], k=20, exclude_seen=other.exclude_seen).items[0]
    assert [each["item"] for each in found["lists"][1]["items"]] == list(map(str, wanted))


def test_the_history_ends_where_the_held_out_events_begin(five, runs):
    run = open_run(runs["mixture"])
    points, judged = split_log(run.log, run.config.split).test, run.config.head.next_items
    assert (points.limit - points.point > judged).any()
    for user, point, limit in zip(points.user, points.point, points.limit, strict=True):
        found = told(five, str(run.log.user_keys.key(int(user))))
        start = int(run.log.offsets[user])
        assert found["held_out"] == "test"
        assert found["events"] == point - start
        end = min(limit, point + judged)
        assert found["later"] == limit - end
        for name, slice_ in (("history", slice(start, point)), ("next", slice(point, end))):
            keys = list(map(str, run.log.item_keys.keys(run.log.items[slice_])))
            assert [each["item"] for each in found[name]] == keys
        times = [each["time"] for each in found["history"]]
        assert times == sorted(times)
        assert times[0].startswith("20")


def test_part_names_are_the_largest_parts_and_parts_add_up(five):
    for each in told(five, "u3")["lists"][0]["items"]:
        parts = each["parts"]
        assert parts.keys() == {"softmax", "copy", "follow"}
        assert each["part"] == max(parts, key=parts.get)
        assert sum(parts.values()) == pytest.approx(each["score"], rel=1e-4)
    assert {each["part"] for each in told(five, "u3")["lists"][1]["items"]} == {None}


def test_what_the_page_is_told_of_the_models(five):
    about = five.get("/explorer/about").json()
    assert [each["name"] for each in about["models"]] == [*JUDGED, "export"]
    first, *_, export = about["models"]
    assert first["parts"] == ["softmax", "copy", "follow"]
    assert (first["items"], first["users"], first["exclude_seen"]) == (NUM_ITEMS, NUM_USERS, False)
    assert (export["users"], export["step"]) == (0, None)
    assert (about["named"], about["limits"]) == (False, {"history": 10_000})


def test_users_are_found_by_the_beginning_of_their_key(five):
    found = five.get("/explorer/users", params={"prefix": "u1"}).json()
    keys = [each["user"] for each in found["users"]]
    assert keys[0] == "u1"
    assert sorted(keys) == sorted(["u1", *(f"u{n}" for n in range(10, 20))])
    assert found["more"] is False
    some = five.get("/explorer/users", params={"prefix": "u1", "limit": "3"}).json()
    assert [each["user"] for each in some["users"]] == keys[:3]
    assert some["more"] is True
    assert five.get("/explorer/users", params={"prefix": "x"}).json() == {
        "users": [], "more": False
    }  # fmt: skip
    assert len(five.get("/explorer/users").json()["users"]) == 20
    log = open_run(five.models.first.model.run.path).log
    first = found["users"][0]
    id = int(log.user_keys.known_ids(["u1"])[0])
    assert first["events"] == int(log.offsets[id + 1] - log.offsets[id])


@pytest.mark.parametrize(
    "limit", ["0", "101", "-1", "x", "", "1.5", "²", "9" * 5000, "0" * 8 + "59", "000000001"]
)
def test_limits_of_searches_are_checked(five, limit):
    answer = five.get("/explorer/users", params={"limit": limit})
    if limit == "000000001":
        assert len(answer.json()["users"]) == 1
    else:
        shown = limit[:60]
        assert sentence(answer, 422) == f"limit must be from 1 to 100, got '{shown}'."


def test_a_random_user_has_held_out_events(five):
    for _ in range(5):
        key = five.get("/explorer/random-user").json()["user"]
        assert told(five, key)["held_out"] == "test"


def test_items_are_found_by_the_beginning_of_their_key(five):
    found = five.get("/explorer/items", params={"query": "100"}).json()
    assert {each["item"] for each in found["items"]} == {str(n) for n in range(1000, 1010)}
    (exact,) = five.get("/explorer/items", params={"query": "1007"}).json()["items"]
    model = five.models.first.model
    assert exact == {
        "item": "1007", "name": None, "count": model.training_counts()[model.item_keys.id(1007)]
    }  # fmt: skip


@pytest.fixture(scope="module")
def named(runs, tmp_path_factory):
    """Hostile keys, and hostile names and groups."""
    path = tmp_path_factory.mktemp("named") / "items.parquet"
    model = tapas.load(runs["text"])
    columns = {
        "key": model.items,
        "title": [f"{HARM} {n} Cheddar" if n % 2 else f"Milk {n}" for n in range(NUM_ITEMS)],
        "aisle": [("dairy", HARM)[n % 2] for n in range(NUM_ITEMS)],
    }
    pl.DataFrame(columns).write_parquet(path)
    return Served(runs["text"], items=path)


def test_items_are_found_by_words_of_their_names(named):
    found = named.get("/explorer/items", params={"query": "CHEDDAR img", "limit": "9"}).json()
    assert len(found["items"]) == 9
    assert all("Cheddar" in each["name"] for each in found["items"])
    assert found["more"] is True
    facts = named.get("/explorer/item", params={"key": found["items"][0]["item"]}).json()
    assert facts["columns"] == {"aisle": HARM}
    assert all(each["name"] for each in facts["similar"][0]["items"])
    about = named.get("/explorer/about").json()
    assert about["named"] is True


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_items_are_found(named, key):
    found = named.get("/explorer/item", params={"key": key})
    assert found.headers["content-type"] == "application/json"
    assert found.json()["item"] == key
    items = named.get("/explorer/items", params={"query": key}).json()["items"]
    assert items[0]["item"] == key
    lists = named.client.post("/explorer/lists", json={"history": [key]}).json()
    assert lists["unknown"] == []
    assert len(lists["lists"][0]["items"]) == 20


@pytest.mark.parametrize("key", [HARM, " ", ".."])
def test_hostile_users_are_found(named, key):
    assert told(named, key)["user"] == key
    found = named.get("/explorer/users", params={"prefix": key}).json()
    assert found["users"][0]["user"] == key


def test_facts_of_an_item(five, runs):
    model, run = tapas.load(runs["mixture"]), open_run(runs["mixture"])
    found = five.get("/explorer/item", params={"key": "1007"}).json()
    id = run.log.item_keys.id(1007)
    counts = model.training_counts()
    assert found["count"] == counts[id]
    assert found["of"] == NUM_ITEMS
    assert found["rank"] == 1 + sum((-c, n) < (-counts[id], id) for n, c in enumerate(counts))
    assert found["columns"] == {}
    assert [each["model"] for each in found["similar"]] == [
        kind for kind in (*JUDGED, "export") if kind != "huffman"
    ]
    near = model.similar(1007, k=20)
    assert [each["item"] for each in found["similar"][0]["items"]] == list(map(str, near.items[0]))
    users = [
        str(run.log.user_keys.key(user))
        for user in range(run.log.num_users)
        if id in run.log.items[run.log.offsets[user] : run.log.offsets[user + 1]]
    ]
    assert found["num_users"] == len(users)
    assert {each["user"] for each in found["users"]} <= set(users)
    for each in found["users"]:
        user = run.log.user_keys.id(each["user"])
        mine = run.log.items[run.log.offsets[user] : run.log.offsets[user + 1]]
        assert (each["events"], each["times"]) == (len(mine), (mine == id).sum())
    times = [each["times"] for each in found["users"]]
    assert times == sorted(times, reverse=True)


def test_what_follows_an_item_is_what_came_directly_after_it_in_training(five, runs):
    """A loop over the events of training; held-out events are not counted."""
    run = open_run(runs["mixture"])
    log, end = run.log, split_log(run.log, run.config.split).train_end
    id, after = run.log.item_keys.id(1007), Counter()
    for user, start in enumerate(log.offsets[:-1]):
        events = list(zip(log.times[start : end[user]], log.items[start : end[user]], strict=True))
        moments = sorted({time for time, _ in events})
        following = dict(pairwise(moments))
        for time, item in events:
            if item == id and time in following:
                after.update(i for t, i in events if t == following[time])
    found = five.get("/explorer/item", params={"key": "1007"}).json()
    assert found["weighted"] is False
    keys = log.item_keys
    total = after.total()
    wanted = {str(keys.key(item)): number / total for item, number in after.most_common(20)}
    shares = [each["share"] for each in found["followers"]]
    assert shares == pytest.approx(sorted(wanted.values(), reverse=True))
    least = min(wanted.values())
    assert {each["item"] for each in found["followers"] if each["share"] > least} == {
        key for key, share in wanted.items() if share > least
    }


def test_the_class_of_all_rare_items_is_marked_wherever_it_is_listed(runs):
    served = Served(runs["rare-mixture"])
    keys = served.models.first.model.item_keys
    rare = str(keys.key(keys.rare_id))
    users = served.get("/explorer/users", params={"prefix": "", "limit": 100}).json()["users"]
    history = [
        event
        for each in users
        for event in served.get("/explorer/user", params={"key": each["user"]}).json()["history"]
    ]
    followers = [
        item
        for key in keys.keys(np.arange(len(keys)))
        if str(key) != rare
        for item in served.get("/explorer/item", params={"key": str(key)}).json()["followers"]
    ]
    for listed in (history, followers):
        assert {each["item"] for each in listed if each.get("rare")} == {rare}
        assert all(each.get("rare") for each in listed if each["item"] == rare)


def test_an_export_without_counts_does_not_know_what_follows(runs, monkeypatch):
    shop = Served(runs["export"])
    monkeypatch.setattr(shop.models.first.model, "_mixture", None)
    found = shop.get("/explorer/item", params={"key": "1000"}).json()
    assert (found["followers"], found["weighted"]) == (None, False)


def test_items_that_only_another_model_knows_are_found(runs, tmp_path):
    """Its log has other items; each is shown by the first model that knows it."""
    frame = pl.read_parquet(runs.log_of("network")).filter(pl.col("item_id") < 1030)
    frame.write_parquet(tmp_path / "part.parquet")
    runs.train(tmp_path / "part", tmp_path / "part.parquet", *NETWORK)
    both = Served(tmp_path / "part", runs["network"])
    assert both.get("/explorer/items", params={"query": "1040"}).json()["items"]
    found = both.get("/explorer/item", params={"key": "1040"}).json()
    model = both.models.find("network").model
    assert found["count"] == model.training_counts()[model.item_keys.id(1040)]
    assert found["of"] == NUM_ITEMS
    assert [each["model"] for each in found["similar"]] == ["network"]
    assert found["followers"]
    body = {"history": ["1040", "1000", "nothing"]}
    told = both.client.post("/explorer/lists", json=body).json()
    assert told["unknown"] == ["nothing"]
    assert [each["item"] for each in told["history"]] == ["1040", "1000"]


def test_ranks_leave_out_the_merged_rare_class(runs):
    rare = Served(runs["rare"])
    (model,) = rare.models
    keys, counts = model.model.item_keys, model.training_counts
    ids = [id for id in range(len(counts)) if id != keys.rare_id]
    by_count = sorted(ids, key=lambda id: (-counts[id], id))
    for place, id in enumerate(by_count, start=1):
        found = rare.get("/explorer/item", params={"key": str(keys.key(id))}).json()
        assert (found["rank"], found["of"]) == (place, len(ids))
        assert rare.get(f"/items/{keys.key(id)}").json()["rank"] == place


def test_times_that_are_probably_seconds_since_1970_are_shown_as_dates(runs, tmp_path):
    frame = pl.read_parquet(runs.log_of("network"))
    seconds = pl.int_range(pl.len()) * 3600 + 1_700_000_000
    frame.with_columns(time=seconds).write_parquet(tmp_path / "log.parquet")
    runs.train(tmp_path / "run", tmp_path / "log.parquet", *NETWORK)
    found = told(Served(tmp_path / "run"), "u4")
    assert found["history"][0]["time"].startswith("2023-11-")
    assert len(found["history"][0]["time"]) == len("2023-11-14 22:13:20")


def test_unknown_users_and_items_are_named(five):
    for path, words in (
        ("user?key=u111", "unknown user 'u111'. Did you mean 'u11'?"),
        ("user?key=", "unknown user ''."),
        ("user", "unknown user ''."),
        ("item?key=10077", "unknown item '10077'. Did you mean '1007'?"),
        (f"item?key={'x' * 500}", f"unknown item '{'x' * 60}'."),
        ("map?model=nothing", f"unknown model 'nothing'. Known: {', '.join(JUDGED)}, export."),
    ):
        assert sentence(five.get(f"/explorer/{path}"), 404) == words
    words = five.error(404, "/explorer/lists", history=["1000"], model="nothing")
    assert words == f"unknown model 'nothing'. Known: {', '.join(JUDGED)}, export."


def test_lists_after_a_history_are_those_of_the_api(five):
    for kind in (*JUDGED, "export"):
        body = {"history": ["1000", "1011"], "model": kind}
        (mine,) = five.client.post("/explorer/lists", json=body).json()["lists"]
        (wanted,) = five.recommend(histories=[["1000", "1011"]], model=kind)
        assert [each["item"] for each in mine["items"]] == [
            str(each["item"]) for each in wanted["items"]
        ]
        assert mine["hits"] == 0


def test_unknown_items_of_a_history_are_told(five, runs):
    body = {"history": ["nothing", "1000", 99]}
    found = five.client.post("/explorer/lists", json=body).json()
    assert found["unknown"] == ["nothing", "99"]
    none = five.client.post("/explorer/lists", json={"history": ["nothing"]}).json()
    assert none["lists"][0] == {
        "model": "mixture", "score": "probability", "hits": 0, "items": [],
        "note": "It knows no item of the history.",
    }  # fmt: skip
    assert five.client.post("/explorer/lists", json={"history": []}).status_code == 200
    rare = Served(runs["rare"])
    body = {"history": ["nothing"]}
    (mine,) = rare.client.post("/explorer/lists", json=body).json()["lists"]
    (wanted,) = rare.recommend(histories=[["nothing"]])
    assert [each["item"] for each in mine["items"]] == [str(e["item"]) for e in wanted["items"]]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Object missing required field `history`."),
        ({"history": "1000"}, "history: expected `array`, got `str`."),
        ({"history": [1.5]}, "history[0]: expected `int | str`, got `float`."),
        ({"history": [], "users": []}, "Object contains unknown field `users`."),
        ({"history": [], "modle": ""},
         "Object contains unknown field `modle`. Did you mean 'model'?"),
        ({"history": ["x"] * 10_001}, "history: expected `array` of length <= 10000."),
    ],
)  # fmt: skip
def test_a_history_that_does_not_fit_is_told_why(five, body, words):
    assert five.error(422, "/explorer/lists", **body) == words


def test_the_map_has_the_most_frequent_items_at_their_places(five, runs):
    for kind in ("mixture", "export", "half", "warp"):
        found = five.get("/explorer/map", params={"model": kind}).json()
        model = five.models.find(kind).model
        ids, _ = model.popular(NUM_ITEMS)
        assert found["items"] == list(map(str, model.item_keys.keys(ids)))
        assert found["counts"] == model.training_counts()[ids].tolist()
        places = np.array([found["x"], found["y"]])
        assert np.abs(places).max() == 1
        vectors = model.class_vectors().detach().double().numpy()[ids]
        centred = vectors - vectors.mean(axis=0)
        spread = np.linalg.svd(centred, compute_uv=False)[:2]
        shares = np.linalg.norm(places - places.mean(axis=1)[:, None], axis=1)
        assert shares[1] / shares[0] == pytest.approx(spread[1] / spread[0], rel=1e-2)
    words = sentence(five.get("/explorer/map", params={"model": "huffman"}), 404)
    assert words.startswith("the method 'huffman' has no table of class vectors")


def test_exports_alone_have_no_users_but_items_and_lists(runs):
    shop = Served(runs["export"])
    words = "the models are exports, which have no users. Type a history."
    for path in ("user?key=u1", "users?prefix=u", "random-user"):
        assert sentence(shop.get(f"/explorer/{path}"), 404) == words
    item = shop.get("/explorer/item?key=1000").json()
    assert (item["users"], item["num_users"]) == ([], 0)
    assert item["followers"]
    assert item["weighted"] is True
    body = {"history": ["1000"]}
    assert len(shop.client.post("/explorer/lists", json=body).json()["lists"][0]["items"]) == 20
    assert shop.get("/explorer/map").status_code == 200


def test_users_of_the_first_run_are_shown_where_an_export_leads(runs):
    both = Served(runs["export"], runs["network"])
    key = judged_user(both)
    found = told(both, key)
    assert [each["model"] for each in found["lists"]] == ["export", "network"]
    assert [each["note"] for each in found["lists"]] == [OTHER_LOG, None]
    wanted = evaluated(runs["network"], [key])[key]
    assert [each["item"] for each in found["lists"][1]["items"]] == wanted[0]


def test_a_user_without_held_out_events_is_shown_whole(runs, tmp_path):
    frame = pl.read_parquet(runs.log_of("network"))
    early = frame.head(1).with_columns(user_id=pl.lit("early"))
    pl.concat([frame, early]).write_parquet(tmp_path / "log.parquet")
    runs.train(tmp_path / "run", tmp_path / "log.parquet", *NETWORK)
    found = told(Served(tmp_path / "run"), "early")
    assert (found["held_out"], found["events"], found["next"]) == (None, 1, [])
    assert [each["hits"] for each in found["lists"]] == [0]
    assert found["lists"][0]["note"] is None
