"""Random sessions with beanlite and with the reference at the same time; every reply of both is compared.

::

    RANDOM_STEPS=20000 python -m pytest tests/reference              # a long one
    RANDOM_SEED=4711 python -m pytest tests/reference                # the same as the one that had this seed

There are fewer of them with a PostgreSQL database, unless ``ALL_ON_POSTGRESQL=1``.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.reference.machine import Sessions
from tests.reference.pair import Pair
from tests.support.needs import need
from tests.support.postgres import PART, Cluster
from tests.support.servers import beanstalkd_program

STEPS = int(os.environ.get("RANDOM_STEPS", "2000"))
SEED = int(os.environ.get("RANDOM_SEED", str(random.randrange(1 << 32))))
STEPS_A_SESSION = 50


@pytest.fixture(params=["file", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where the jobs are."""
    return str(request.param)


@pytest.fixture
def sessions(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, kind: str
) -> Iterator[type[Sessions]]:
    """The state machine with its pair of servers, which is replaced after a difference."""
    need(beanstalkd_program(), "beanstalkd is not installed")
    pairs: list[Pair] = []
    cluster: Cluster | None = request.getfixturevalue("postgres") if kind == "postgresql" else None

    def pair() -> Pair:
        if not pairs:
            ours = () if cluster is None else ("--database", cluster.new_database(), "--require-sync", "false")
            pairs.append(Pair(tmp_path_factory.mktemp("pair"), *ours))
        return pairs[0]

    def give_up() -> None:
        pairs.pop().__exit__()

    class WithServers(Sessions):
        pass

    WithServers.pair, WithServers.give_up = staticmethod(pair), staticmethod(give_up)
    yield WithServers
    if pairs:
        give_up()


def test_random_sessions(sessions: type[Sessions], kind: str, record_property: Callable[[str, object], None]) -> None:
    print(f"RANDOM_SEED={SEED}")  # noqa: T201 - shown if it fails
    run_state_machine_as_test(
        seed(SEED)(sessions),
        settings=settings(
            max_examples=max(1, STEPS // STEPS_A_SESSION // (PART if kind == "postgresql" else 1)),
            stateful_step_count=STEPS_A_SESSION,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property("random steps", (kind, sessions.steps, sessions.replies, SEED))
