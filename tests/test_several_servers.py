"""What docs/several-servers.md has clients and operators do: its code, with two real servers."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import start_beanlite
from tests.support.wire import Wire

PAGE = (Path(__file__).parents[1] / "docs" / "several-servers.md").read_text(encoding="utf-8")
(CLIENT,) = re.findall(r"^```python\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
(CARRY_OVER,) = re.findall(r"^  ```sh\n(.+?)^  ```", PAGE, re.MULTILINE | re.DOTALL)
LIKE_A_LINE = b'{"tube": "mail", "state"'


def test_tubes_are_shared_out_and_carried_over(tmp_path):
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
            at_first.put(LIKE_A_LINE)
    (one / "queue.db").rename(tmp_path / "one.db")
    (two / "queue.db").rename(tmp_path / "two.db")
    commands = CARRY_OVER.replace("beanlite", f"{sys.executable} -m beanlite")
    done = subprocess.run(["bash", "-eu", "-c", commands], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "two.db: 1 job and 0 pauses imported\n"
