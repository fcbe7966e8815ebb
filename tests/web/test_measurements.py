"""/metrics can be parsed and counts what was answered; /healthz says what is served."""

import shutil

import pytest
from prometheus_client.parser import text_string_to_metric_families
from web.small_runs import NUM_ITEMS, Served


@pytest.fixture
def fresh(runs):
    return Served(runs["network"])


def measured(served):
    """The samples of /metrics by name and labels."""
    answer = served.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status(fresh):
    for _ in range(3):
        fresh.post("/recommend", histories=[[1000]] * 5)
    fresh.post("/recommend", histories=[])
    fresh.get("/items/1000")
    fresh.get("/items/nothing")
    for path in ("/a", "/b/c", "/static/x", "/", "/healthzz", "/items"):
        fresh.get(path)
    found = measured(fresh)
    assert found["tapas_requests_total", "/recommend", "200"] == 3
    assert found["tapas_requests_total", "/recommend", "422"] == 1
    assert found["tapas_requests_total", "/items", "200"] == 1
    assert found["tapas_requests_total", "/items", "404"] == 2
    assert found["tapas_requests_total", "200", "other"] == 1
    assert found["tapas_requests_total", "404", "other"] == 4
    assert found["tapas_request_seconds_count", "/recommend"] == 4
    assert 0 < found["tapas_request_seconds_sum", "/recommend"] < 60
    assert found["tapas_batch_size_count",] == 3 + 1 + 1  # 1000 and nothing are looked up, too
    assert found["tapas_batch_size_sum",] == 3 * 5 + 1 + 1
    assert found["tapas_model_step", "network"] == fresh.models.first.step
    assert (found["tapas_reloads",], found["tapas_failed_reloads",]) == (0, 0)
    assert found["process_resident_memory_bytes",] > 0


def test_strangers_cannot_make_up_names_of_routes(fresh):
    for number in range(20):
        fresh.get(f"/{number}")
        fresh.client.request(f"VERB{number}", "/healthz")
    routes = {key[1:] for key in measured(fresh) if key[0] == "tapas_requests_total"}
    assert routes == {("404", "other"), ("/healthz", "405")}


def test_a_failure_is_counted_as_500(fresh, monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(fresh.models.first, "predict", fail)
    fresh.post("/recommend", histories=[[1000]])
    assert measured(fresh)["tapas_requests_total", "/recommend", "500"] == 1


def test_names_of_models_are_escaped(runs, tmp_path):
    strange = tmp_path / 'a"\\{b}\n'
    shutil.copytree(runs["network"], strange)
    assert ("tapas_model_step", strange.name) in measured(Served(strange))


def test_healthz_tells_the_models_and_that_the_server_stops(fresh):
    step = fresh.models.first.step
    models = [{"name": "network", "step": step, "items": NUM_ITEMS}]
    assert fresh.get("/healthz").json() == {"status": "ok", "models": models}
    fresh.api.stopping = True
    answer = fresh.get("/healthz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "stopping", "models": models}
