"""What docs/several-servers.md has clients do: its code, with two real servers."""

import re
from pathlib import Path

from tests.support.servers import start_beanlite
from tests.support.wire import Wire

PAGE = (Path(__file__).parents[1] / "docs" / "several-servers.md").read_text(encoding="utf-8")
(CLIENT,) = re.findall(r"^```python\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_clients_share_tubes_out(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in one, two:
        folder.mkdir()
    with start_beanlite(one) as first, start_beanlite(two) as second:
        servers = [("127.0.0.1", first.port), ("127.0.0.1", second.port)]
        page: dict = {}
        exec(re.sub(r"^SERVERS = .+", f"SERVERS = {servers}", CLIENT, flags=re.MULTILINE), page)  # noqa: S102 - our page's
        for tube in "mail", "sms":
            with page["client_of"](tube) as client:
                client.put(f"for {tube}")
        with Wire(first.connect()) as at_first, Wire(second.connect()) as at_second:
            assert at_first.stats("stats-tube mail")["current-jobs-ready"] == "1"
            assert at_first.ask("stats-tube sms") == "NOT_FOUND"
            assert at_second.stats("stats-tube sms")["current-jobs-ready"] == "1"
