"""The lists of the API are those of `tapas.load`, for every kind of model."""

import json

import numpy as np
import pytest
from oracle.command_line import invoke
from web.small_runs import (
    HOSTILE,
    KINDS,
    NUM_ITEMS,
    NUM_USERS,
    Served,
    hostile_key,
    items_of,
    scores_of,
)

import tapas

ITEMS = [1000, 1011, 1023, 1040]
HISTORIES = [ITEMS[:1], ITEMS, ITEMS[::-1] * 3, [1007, 1007]]


@pytest.fixture(scope="module")
def loaded(runs):
    """`tapas.load` of each kind, once."""
    models = {}

    def load(kind):
        if kind not in models:
            models[kind] = tapas.load(runs[kind])
        return models[kind]

    return load


def in_keys_of(kind, items):
    """Items as the model `kind` knows them, without those that are rare there."""
    return [hostile_key(item) for item in items] if kind == "text" else items


def histories_of(kind):
    return [in_keys_of(kind, history) for history in HISTORIES]


def same(lists, wanted, score):
    assert items_of(lists) == [
        [item for item in row if item is not None] for row in wanted.items.tolist()
    ]
    for got, want in zip(scores_of(lists, score), wanted.scores, strict=True):
        np.testing.assert_allclose(got, want[: len(got)], rtol=2e-5, atol=1e-8)


@pytest.mark.filterwarnings("ignore:unknown items of histories:UserWarning")
@pytest.mark.parametrize("exclude", [True, False, None])
@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_histories_are_those_of_the_loaded_model(served, loaded, kind, exclude):
    model = loaded(kind)
    wanted = model.recommend(histories_of(kind), k=9, exclude_seen=exclude)
    asked = {} if exclude is None else {"exclude_seen": exclude}
    lists = served.recommend(model=kind, histories=histories_of(kind), k=9, **asked)
    same(lists, wanted, model.score)


@pytest.mark.parametrize("exclude", [True, False, None])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "export"])
def test_lists_of_users_are_those_of_the_loaded_model(served, loaded, kind, exclude):
    """Of all users, so that some have several items in a basket, and rare ones."""
    model = loaded(kind)
    users = [user for user in model.users if user != " "]  # which Python takes for a missing one
    wanted = model.recommend(users, k=9, exclude_seen=exclude)
    asked = {} if exclude is None else {"exclude_seen": exclude}
    lists = served.recommend(model=kind, users=users, k=9, **asked)
    assert [each["user"] for each in lists] == users
    same(lists, wanted, model.score)


def test_a_list_has_20_items_by_default_and_says_its_model_and_step(served, loaded):
    answer = served.post("/recommend", histories=[[1000]]).json()
    assert (answer["model"], answer["step"]) == ("mixture", loaded("mixture").step)
    assert [len(each["items"]) for each in answer["lists"]] == [20]
    assert answer.keys() == {"model", "step", "lists"}
    assert served.post("/recommend", model="export", histories=[[1000]]).json()["step"] is None


def test_a_list_can_have_all_items_of_the_model(served):
    (every,) = served.recommend(histories=[[1000]], k=NUM_ITEMS, exclude_seen=False)
    assert {each["item"] for each in every["items"]} == {1000 + n for n in range(NUM_ITEMS)}
    probabilities = [each["probability"] for each in every["items"]]
    assert sum(probabilities) == pytest.approx(1, abs=1e-4)
    assert probabilities == sorted(probabilities, reverse=True)
    (others,) = served.recommend(histories=[[1000]], k=NUM_ITEMS, exclude_seen=True)
    assert len(others["items"]) == NUM_ITEMS - 1


def test_integers_may_be_written_as_text_and_come_back_as_integers(served):
    asked = [[1000, 1011]], [["1000", "1011"]], [["1000", 1011]]
    first, *others = (served.recommend(histories=each, k=5) for each in asked)
    assert others == [first, first]
    assert {type(item) for item in items_of(first)[0]} == {int}


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_keys_are_keys_like_others(served, key):
    (found,) = served.recommend(model="text", histories=[[key]], k=3)
    assert "unknown_items" not in found
    (every,) = served.recommend(model="text", histories=[[key]], k=NUM_ITEMS, exclude_seen=False)
    assert key in {each["item"] for each in every["items"]}
    answer = served.post("/similar", model="text", items=[key], k=3)
    assert answer.json()["lists"][0]["item"] == key
    path = f"/items/{escaped(key)}?model=text"  # which TestClient would unescape twice
    (facts,) = served.together(lambda client: [client.get(path)])
    assert facts.json()["item"] == key


def escaped(key):
    """All of a key in hexadecimal digits, as a client may write it."""
    return "".join(f"%{byte:02X}" for byte in key.encode())


def test_unknown_items_are_named_and_left_out(served):
    first, second, plain = served.recommend(
        histories=[["nothing", 1000, 99], [1000], [1000, 1000]], k=4
    )
    assert first["unknown_items"] == ["nothing", 99]
    assert first["items"] == second["items"]
    assert "unknown_items" not in second
    assert "unknown_items" not in plain


@pytest.mark.filterwarnings("ignore:unknown items of histories:UserWarning")
@pytest.mark.parametrize("kind", ["rare", "rare-mixture"])
def test_with_a_merged_rare_class_unknown_items_are_read_as_rare_ones(served, loaded, kind):
    """As `tapas.load` does, and the rare class is never listed."""
    model = loaded(kind)
    known = model.items[0]
    histories = [["nothing"], ["nothing", known], [known, "nothing", 99]]
    wanted = model.recommend(histories, k=6)
    lists = served.recommend(model=kind, histories=histories, k=6)
    same(lists, wanted, "probability")
    assert [each["unknown_items"] for each in lists] == [["nothing"], ["nothing"], ["nothing", 99]]
    every = served.recommend(model=kind, histories=histories, k=model.num_items, exclude_seen=False)
    assert all(set(items) == set(model.items) for items in items_of(every))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "warp"])
def test_allow_lists_only_these_items_in_their_order_and_with_their_probabilities(served, kind):
    history = histories_of(kind)[1]
    number = min(NUM_ITEMS, len(served.models.find(kind).model.items))
    (every,) = served.recommend(model=kind, histories=[history], k=number)
    allowed = [each["item"] for each in every["items"]][3::4]
    (found,) = served.recommend(model=kind, histories=[history], allow=allowed[::-1], k=5)
    wanted = [each for each in every["items"] if each["item"] in allowed]
    assert items_of([found]) == [[each["item"] for each in wanted[:5]]]
    for got, want in zip(found["items"], wanted, strict=False):
        assert got["probability"] == pytest.approx(want["probability"], rel=1e-4)


def test_deny_and_seen_items_are_not_allowed_either(served):
    allow = [1000, 1001, 1002, 1003, 1003]
    (found,) = served.recommend(histories=[[1000]], allow=allow, deny=[1001], exclude_seen=True)
    assert sorted(items_of([found])[0]) == [1002, 1003]
    (none,) = served.recommend(histories=[[1000]], allow=[1000], exclude_seen=True)
    assert none == {"items": []}


@pytest.mark.parametrize("kind", KINDS)
def test_deny_leaves_items_out_and_the_others_keep_their_order(served, kind):
    """Counting parts may offer other items then, which changes the order."""
    history = histories_of(kind)[1]
    (every,) = served.recommend(model=kind, histories=[history], k=12, exclude_seen=False)
    order = [each["item"] for each in every["items"]]
    (found,) = served.recommend(
        model=kind, histories=[history], deny=[*order[::2], "nothing"], k=6, exclude_seen=False
    )
    (left,) = items_of([found])
    assert not set(order[::2]) & set(left)
    assert len(left) == 6
    if served.models.find(kind).model.mixture is None:
        assert left == order[1::2]


def test_unknown_items_to_allow_and_deny_are_named(served):
    answer = served.post("/recommend", histories=[[1000]], allow=[1001, "x"], deny=["y", 1002], k=1)
    assert answer.json()["unknown_items"] == ["x", "y"]
    words = served.error(422, "/recommend", histories=[[1000]], allow=["x"])
    assert words == "no item of allow is known, such as 'x'."


def test_allow_needs_a_model_with_probabilities(served):
    words = served.error(422, "/recommend", model="warp", histories=[[1000]], allow=[1001])
    assert words == "allow needs a model with probabilities, which this is not."


@pytest.mark.parametrize("kind", ["mixture", "rare-mixture", "text", "export", "half", "huffman"])
def test_the_parts_of_a_probability_add_up_to_it(served, kind):
    histories = histories_of(kind)
    lists = served.recommend(model=kind, histories=histories, k=15, explain=True)
    names = ["softmax", "copy", "follow"] if kind not in ("half", "huffman") else ["softmax"]
    for each in lists:
        for item in each["items"]:
            assert list(item["parts"]) == names
            if len(names) > 1:
                assert sum(item["parts"].values()) == pytest.approx(item["probability"], rel=1e-3)
    plain = served.recommend(model=kind, histories=histories, k=15)
    assert items_of(plain) == items_of(lists)
    assert not any("parts" in item for each in plain for item in each["items"])


def test_parts_of_allowed_items_add_up_too(served):
    (found,) = served.recommend(
        histories=[[1000, 1001]], allow=list(range(1000, 1020)), explain=True, exclude_seen=True
    )
    assert len(found["items"]) == 18
    for item in found["items"]:
        assert sum(item["parts"].values()) == pytest.approx(item["probability"], rel=1e-3)


@pytest.mark.parametrize("kind", ["network", "rare", "export"])
def test_cold_histories_get_the_most_popular_items(served, loaded, kind):
    model = loaded(kind)
    known = model.items[0]
    lists = served.recommend(model=kind, histories=[[], [known], []], k=7, cold="popular")
    wanted = model.recommend([[], [known], []], k=7, cold="popular")
    same(lists, wanted, "probability")
    assert [each.get("popular", False) for each in lists] == [True, False, True]


def test_cold_users_get_the_most_popular_items(served, loaded):
    lists = served.recommend(users=["nobody", "u1", "n2"], k=6, cold="popular")
    same(lists, loaded("mixture").recommend(["nobody", "u1", "n2"], k=6, cold="popular"),
         "probability")  # fmt: skip
    assert [(each["user"], each.get("popular")) for each in lists] == [
        ("nobody", True), ("u1", None), ("n2", True)
    ]  # fmt: skip


def test_popular_items_are_looked_up_once_for_a_request(served, monkeypatch):
    """A thousand cold users took seconds."""
    calls = []
    model = served.models.first.model
    monkeypatch.setattr(model, "popular", lambda k, real=model.popular: calls.append(k) or real(k))
    lists = served.recommend(users=["x", "u1", "y", "z"], cold="popular", k=3, deny=[1000, 1001])
    assert [each.get("popular") for each in lists] == [True, None, True, True]
    assert calls == [5]


def test_popular_items_obey_allow_and_deny(served):
    (every,) = served.recommend(histories=[[]], cold="popular", k=NUM_ITEMS)
    order = [each["item"] for each in every["items"]]
    (found,) = served.recommend(histories=[[]], cold="popular", deny=order[:4], k=3)
    assert items_of([found]) == [order[4:7]]
    (found,) = served.recommend(
        histories=[[]], cold="popular", allow=[*order[::-3], "x"], deny=order[:1], k=30
    )
    allowed = order[::-3]
    assert items_of([found]) == [[item for item in order[1:] if item in allowed]]


def test_unknown_users_are_named_with_a_suggestion(served):
    cure = 'With "cold": "popular" they get the most popular items.'
    words = served.error(404, "/recommend", users=["u1", "u111"])
    assert words == f"unknown user 'u111'. Did you mean 'u11'? {cure}"
    words = served.error(404, "/recommend", users=["x", "u1", 7])
    assert words == f"unknown user 'x'. 2 users of the request are unknown. {cure}"
    words = served.error(404, "/recommend", users=["y" * 1000])
    assert words == f"unknown user '{'y' * 57}...'. {cure}"


def test_histories_without_a_known_item_are_named(served):
    cure = (
        ", so there is nothing to predict from. "
        'With "cold": "popular" it gets the most popular items.'
    )
    words = served.error(422, "/recommend", histories=[[1000], []])
    assert words == f"history 1 is empty{cure}"
    words = served.error(422, "/recommend", histories=[[1000], ["x"]])
    assert words == f"history 1 has no known item, only 'x'{cure}"
    words = served.error(422, "/recommend", histories=[["x", "y"]])
    assert words == f"history 0 has no known item, only 'x' and others{cure}"


def test_an_export_has_no_users(served):
    words = served.error(422, "/recommend", model="export", users=["u1"], cold="popular")
    assert words == "export is an export, which has no users. Give histories."


@pytest.mark.slow
def test_an_export_of_an_earlier_version_reads_histories_of_any_length(runs, tmp_path):
    """Its encoder is a program that takes histories of one width."""
    old = tmp_path / "old"
    done = invoke("export", runs["network"], "--to", old)
    assert done.returncode == 0, done.stderr
    record = json.loads((old / "export.json").read_text())
    for name in ("checksum", "encoder", "files"):
        del record[name]
    (old / "export.json").write_text(json.dumps(record))
    program = Served(old, trust=True)
    wanted = tapas.load(old, trust=True).recommend(HISTORIES, k=5)
    same(program.recommend(histories=HISTORIES, k=5), wanted, "probability")


def test_unknown_models_are_named_with_a_suggestion(served):
    known = f"Known: {', '.join(KINDS)}."
    for path, body in (("/recommend", {"histories": [[1000]]}), ("/similar", {"items": [1000]})):
        words = served.error(404, path, model="netwrok", **body)
        assert words == f"unknown model 'netwrok'. Did you mean 'network'? {known}"
    answer = served.get("/items/1000?model=nothing")
    assert answer.status_code == 404
    assert answer.json() == {"error": f"unknown model 'nothing'. {known}"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huffman"])
def test_similar_items_are_those_of_the_loaded_model(served, loaded, kind):
    model = loaded(kind)
    items = [model.items[place] for place in (0, 5, 11)]
    wanted = model.similar(items, k=4)
    answer = served.post("/similar", model=kind, items=items, k=4)
    lists = answer.json()["lists"]
    assert [each["item"] for each in lists] == items
    assert items_of(lists) == wanted.items.tolist()
    np.testing.assert_allclose(scores_of(lists, "cosine"), wanted.scores, rtol=1e-5)


def test_a_method_without_vectors_has_no_similar_items(served):
    words = served.error(422, "/similar", model="huffman", items=[1000])
    assert words.startswith("the method 'huffman' has no table of class vectors, which")
    facts = served.get("/items/1000?model=huffman").json()
    assert (facts["item"], facts["similar"]) == (1000, [])
    unknown = served.get("/items/99?model=huffman")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "unknown item '99'."})


def test_unknown_items_are_named_with_a_suggestion(served):
    words = served.error(404, "/similar", items=[1000, 10000])
    assert words == "unknown item '10000'. Did you mean '1000'?"
    answer = served.get("/items/item-1001x?model=text")
    assert answer.status_code == 404
    assert answer.json() == {"error": "unknown item 'item-1001x'. Did you mean 'item-1001'?"}


def test_facts_of_an_item(served, loaded):
    model = loaded("mixture")
    counts = model.training_counts()
    for item in (1000, 1020):
        facts = served.get(f"/items/{item}").json()
        id = model.item_keys.id(item)
        assert facts["item"] == item
        assert facts["count"] == counts[id]
        before = [n for n, count in enumerate(counts) if (-count, n) < (-counts[id], id)]
        assert facts["rank"] == len(before) + 1
        assert (facts["name"], facts["columns"]) == (None, {})
        near = model.similar(item, k=20)
        assert [each["item"] for each in facts["similar"]] == near.items[0].tolist()


def test_every_user_can_be_asked_for_at_once(served, loaded):
    users = [f"u{n}" for n in range(NUM_USERS)] * 3
    lists = served.recommend(users=users, k=2)
    assert [each["user"] for each in lists] == users
    assert items_of(lists) == loaded("mixture").recommend(users, k=2).items.tolist()
