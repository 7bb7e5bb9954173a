"""Servers that tests start are alike, whatever a test has changed in its own process meanwhile."""

from tests.support.servers import start_beanlite
from tests.support.wire import Wire


def test_a_started_server_has_no_variables_of_a_test(monkeypatch, tmp_path):
    monkeypatch.setenv("BEANLITE_MAX_JOB_SIZE", "1")
    with start_beanlite(tmp_path, "--no-journal") as server, server.connect() as client:
        assert Wire(client).stats()["max-job-size"] == "65535"
