"""A Ray cluster is joined only if it is known to require a token."""

import pytest

from tapas import UsageError
from tapas.servers import ray_cluster
from tapas.servers.ray_cluster import accepts_no_token, check_cluster

ADDRESS = "10.0.0.1:6379"


@pytest.fixture
def answers(monkeypatch):
    """Sets the errors of a connection with a token and of one without."""

    def set_answers(friend, stranger):
        def speaks(address, timeout_seconds, settings, hidden=()):
            return friend if settings == ray_cluster.TOKEN else stranger

        monkeypatch.setattr(ray_cluster, "_check_listens", lambda address, seconds: "10.0.0.1")
        monkeypatch.setattr(ray_cluster, "_has_token", lambda: True)
        monkeypatch.setattr(ray_cluster, "_connection_error", speaks)

    return set_answers


def test_a_cluster_that_requires_a_token_is_joined(answers):
    answers("", "InvalidAuthToken: missing")
    assert check_cluster(ADDRESS, 1.0) == "10.0.0.1"


@pytest.mark.parametrize("stranger", ["", "no answer within 1 s", "ImportError: no module"])
def test_a_cluster_that_may_not_require_a_token_is_refused(answers, stranger):
    answers("", stranger)
    assert accepts_no_token(ADDRESS, 1.0)
    with pytest.raises(UsageError) as error:
        check_cluster(ADDRESS, 1.0)
    assert str(error.value) == (
        f"the Ray cluster at {ADDRESS} requires no token: anyone who can reach its ports can run "
        "code there. Make a token with `ray get-auth-token --generate`, copy ~/.ray/auth_token to "
        "every host, and set RAY_AUTH_MODE=token where the cluster is started."
    )


def test_a_server_that_is_not_ray_is_refused(answers):
    answers("no answer within 1 s", "")
    with pytest.raises(UsageError, match=r"does not answer as Ray: no answer within 1 s\."):
        check_cluster(ADDRESS, 1.0)
