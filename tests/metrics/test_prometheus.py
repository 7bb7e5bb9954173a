"""Prometheus itself: it scrapes a real server, and what is in packaging/prometheus fits what it finds there."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest

from tests.support.certificates import Authority, tls_flags
from tests.support.health import ask, samples, start_watched
from tests.support.layout import ROOT
from tests.support.needs import need
from tests.support.postgres import Pair, programs
from tests.support.servers import free_port
from tests.support.wire import Wire

FOLDER = ROOT.parent / "packaging/prometheus"
ALERTS = FOLDER / "alerts.yml"
DASHBOARD = FOLDER / "dashboard.json"
MONITORING = ROOT.parent / "docs/monitoring.md"
RUNBOOKS = ROOT.parent / "docs/alerts.md"
SUFFIX = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def promtool():
    if shutil.which("promtool") is None and "CI" not in os.environ:
        pytest.skip("promtool is not installed")
    return lambda *words, **more: subprocess.run(
        ["promtool", *words], capture_output=True, text=True, check=False, cwd=FOLDER, **more
    )


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A server with all that has metrics, a job in it, and where it is asked."""
    directory = tmp_path_factory.mktemp("server")
    (directory / "backups").mkdir()
    own = Authority(directory / "certificates").sign("server")
    flags = ["--backup-every", "1h", "--backup-dir", str(directory / "backups"), *tls_flags(own)]
    server, where = start_watched(directory, *flags)
    with server, server.connect() as connection:
        Wire(connection).put(b"")
        yield where


@pytest.fixture(scope="module")
def page(watched):
    return ask(watched, "/metrics")[1]


@pytest.fixture(scope="module")
def page_with_postgresql(tmp_path_factory):
    """The page of a server whose database has a standby."""
    need(programs(), "PostgreSQL is not installed")
    pair = Pair()
    try:
        server, where = start_watched(tmp_path_factory.mktemp("server"), "--database", pair.url())
        with server, server.connect() as connection:
            wire = Wire(connection)
            # A standby has a lag only while there are changes.
            until(lambda: wire.put(b"") and "beanlite_postgresql_standby_lag_seconds{" in ask(where, "/metrics")[1])
            return ask(where, "/metrics")[1]
    finally:
        pair.end()


@pytest.fixture(scope="module")
def pages(page, page_with_postgresql):
    """What either tells."""
    return page + page_with_postgresql


def told(page):
    """The names of the metrics, without what a histogram adds to them."""
    return set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))


def named(text):
    """Those of ours that a text names."""
    return set(re.findall(r"\b(?:beanlite|process)_\w+", text))


def expressions(title=None):
    """What the panels ask for, or the one with this title, of all servers and tubes."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    chosen = [panel for panel in panels if title in {None, panel["title"]}]
    found = [target["expr"] for panel in chosen for target in panel.get("targets", [])]
    for variable, value in {"$server": ".*", "$instance": ".*", "$tube": ".*", "$__rate_interval": "1m"}.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def unknown(names, page):
    known = told(page)
    return {name for name in names if name not in known and SUFFIX.sub("", name) not in known}


@pytest.mark.parametrize("file", ["alerts.yml", "alerts.test.yml", "dashboard.json"])
def test_each_metric_that_is_asked_for_is_told(file, pages):
    names = named((FOLDER / file).read_text())
    assert names
    assert unknown(names, pages) == set()


def test_each_metric_is_described(pages):
    described = named(MONITORING.read_text())
    assert told(pages) - described == set()
    assert unknown(described, pages) == set()


def alerts():
    return re.findall(r"alert: (\w+)", ALERTS.read_text())


def test_each_alert_has_a_section_that_says_what_to_do():
    assert re.findall(r"^## (Beanlite\w+)", RUNBOOKS.read_text(), re.MULTILINE) == alerts()


def test_each_alert_names_its_section_as_runbook():
    runbooks = re.findall(r'runbook_url: "docs/alerts.md#(\w+)"', ALERTS.read_text())
    assert runbooks == [alert.lower() for alert in alerts()]


def test_each_alert_is_tested_to_come_and_to_be_silent():
    tests = (FOLDER / "alerts.test.yml").read_text()
    for alert in alerts():
        assert tests.count(f"alertname: {alert}\n        exp_alerts:\n") == 1, alert
        assert tests.count(f"alertname: {alert}\n        exp_alerts: []\n") == 1, alert


def test_panels_have_titles_and_places_of_their_own():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for what in ("id", "title"):
        assert len({panel[what] for panel in panels}) == len(panels)
    places = {
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    }
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels)
    assert max(x for x, _ in places) < 24


def test_dashboard_shows_what_is_wrong_and_leads_to_the_page():
    dashboard = json.loads(DASHBOARD.read_text())
    (panel,) = [panel for panel in dashboard["panels"] if panel["title"] == "What is wrong"]
    assert "beanlite_finding{" in panel["targets"][0]["expr"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    links = [link["url"] for link in dashboard["links"]]
    links += [link["url"] for link in panel["fieldConfig"]["defaults"]["links"]]
    assert "${page}/" in links
    assert "page" in variables


@pytest.mark.parametrize("of", ["page", "page_with_postgresql"])
def test_promtool_accepts_the_metrics(promtool, of, request):
    checked = promtool("check", "metrics", input=request.getfixturevalue(of))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts.test.yml"]
)
def test_promtool_accepts_the_files(promtool, words):
    checked = promtool(*words.split())
    assert checked.returncode == 0, checked.stdout + checked.stderr


EXAMPLES = {"prometheus": "127.0.0.1:11381", "container": "beanlite:11381"}


@contextlib.contextmanager
def prometheus(directory, config):
    """Debian's, with a configuration, by which it asks each second."""
    (directory / "prometheus.yml").write_text(config.replace("15s", "1s"))
    # The rules, beside the configuration, and where the container has them.
    (directory / "alerts.yml").symlink_to(ALERTS)
    (directory / "beanlite").symlink_to(FOLDER)
    where = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--web.listen-address={where}"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--storage.tsdb.path={directory}/data"], stdout=log, stderr=log)
        try:
            yield where
        finally:
            process.terminate()
            process.wait(20)


def asked(where, path, **parameters):
    url = f"http://{where}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=10) as response:
        answer = json.loads(response.read())
    assert answer["status"] == "success"
    return answer["data"]


def until(condition):
    end_s = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):  # it is not up yet
            if condition():
                return
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.1)


@pytest.mark.parametrize("example", EXAMPLES)
def test_prometheus_scrapes_all_that_dashboard_and_alerts_ask_for(watched, tmp_path, example):
    if shutil.which("prometheus") is None and "CI" not in os.environ:
        pytest.skip("prometheus is not installed")
    config = (FOLDER.parent / example / "prometheus.yml").read_text()
    assert config.count(f'"{EXAMPLES[example]}"') == 1
    with prometheus(tmp_path, config.replace(EXAMPLES[example], watched)) as where:
        until(
            lambda: [sample["value"][1] for sample in asked(where, "query", query="beanlite_ready")["result"]] == ["1"]
        )
        targets = asked(where, "targets")["activeTargets"]
        assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")]
        count = 'count({__name__=~"(beanlite|process)_.*"})'
        until(  # a finding may have come meanwhile
            lambda: (
                [int(series["value"][1]) for series in asked(where, "query", query=count)["result"]]
                == [len(samples(ask(watched, "/metrics")[1]))]
            )
        )
        for expression in expressions():
            asked(where, "query", query=expression)  # an error, if it makes no sense
        until(lambda: asked(where, "rules")["groups"][0]["rules"][0]["health"] != "unknown")
        rules = asked(where, "rules")["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys(alerts(), "ok")


def values(where, expression, label="server"):
    """What an expression is, by a label; empty, if the series has none."""
    series = asked(where, "query", query=expression)["result"]
    return {each["metric"].get(label, ""): float(each["value"][1]) for each in series}


def with_file_sd(directory, servers):
    """The example's configuration, for what the command prints of a file of servers."""
    (directory / "servers.toml").write_text(servers)
    command = [sys.executable, "-m", "beanlite", "targets", "--servers", directory / "servers.toml"]
    printed = subprocess.run(command, capture_output=True, check=True)
    (directory / "beanlite.json").write_bytes(printed.stdout)
    config = (FOLDER / "prometheus.yml").read_text()
    config = re.sub(r"    static_configs:\n.*\n", "", config)
    return re.sub(r"# (file_sd_configs:\n    )# (  - files)", r"\1\2", config)


def test_dashboard_tells_which_of_several_servers_has_stopped(tmp_path):
    if shutil.which("prometheus") is None and "CI" not in os.environ:
        pytest.skip("prometheus is not installed")
    (one, at_one), (two, at_two) = (start_watched(tmp_path / name) for name in ("one", "two"))
    places = {"one": (one, at_one, 1), "two": (two, at_two, 2)}
    servers = "".join(
        f'[servers.{name}]\nnumber = {number}\nconnect = "{server.host}:{server.port}"\nmetrics = "{at}"\n'
        for name, (server, at, number) in places.items()
    )
    ((serves,), (each, silent)) = expressions("Ready to serve"), expressions("Which serve and accept puts")
    with one, two, prometheus(tmp_path, with_file_sd(tmp_path, servers)) as where:
        until(lambda: values(where, each) == {"one": 1, "two": 1})
        assert values(where, serves) == {"": 1}
        two.stop()
        until(lambda: values(where, silent) == {"two": 0})
        assert values(where, each) == {"one": 1}
        assert values(where, serves) == {"": 0}
        until(lambda: values(where, "ALERTS{alertname='BeanliteDown'}") == {"two": 1})
