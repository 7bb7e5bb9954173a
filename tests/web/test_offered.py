"""Jobs that are offered to a client: they are shown as reserved, and nobody holds them."""

import pytest

from tests.support.wire import Wire


@pytest.fixture
def router(server):
    with Wire(server.connect()) as router:
        yield router


def test_job_that_is_offered_is_shown(web, wire, router):
    ids = [wire.put(b"job") for _ in range(2)]
    assert router.ask("offer 5").startswith(f"OFFERED {ids[0]} ")
    page = web.get(f"/job/{ids[0]}")
    assert (page.status, "Last holder none yet" in page.text) == (200, True)
    assert wire.ask(f"reserve-job {ids[1]}").startswith("RESERVED")
    assert [web.get(path).status for path in ("/tube/default", "/jobs?q=state:reserved")] == [200, 200]


def test_client_that_had_an_offered_job_is_not_its_holder(web, wire, router):
    job_id = wire.put(b"job")
    assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED")
    page = web.get(f"/job/{job_id}").text
    assert ("all that it holds" in page, "Last holder" in page) == (True, False)
    assert wire.ask(f"release {job_id} 0 0") == "RELEASED"
    assert router.ask("offer 5").startswith(f"OFFERED {job_id} ")
    page = web.get(f"/job/{job_id}")
    assert "Last holder" in page.text
    assert "all that it holds" not in page.text
    assert "Last holder" in web.get("/tube/default").text
