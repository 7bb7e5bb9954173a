"""The image and the example for compose, as far as their files tell; `test_image.py` builds the image."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from beanlite.cli.web import DEFAULT_LISTEN
from beanlite.host.places import host_and_port
from beanlite.settings import sources
from beanlite.settings.config import Settings
from beanlite.settings.defaults import PORT
from tests.packaging.test_metadata import PYTHONS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging/container"
# A backslash at the end of a line continues it.
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in (FOLDER / "Containerfile").read_text().replace("\\\n", "").splitlines()
    if line and not line.startswith("#")
]
PUBLIC = {"queue": PORT, "page": host_and_port(DEFAULT_LISTEN)[1], "health": 11381}
USERS = "packaging/container/users"


def told(name):
    """The arguments of all instructions of a kind."""
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def variables():
    """The settings of the image, as its environment has them."""
    pairs = dict(word.split("=", 1) for line in told("ENV") for word in line.split())
    return {name: value for name, value in pairs.items() if name.startswith("BEANLITE_")}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def mounts(service):
    """Where the files of this checkout are in a container."""
    pairs = [volume.split(":")[:2] for volume in service["volumes"] if volume.startswith(".")]
    return {(FOLDER / source).resolve(): Path(target) for source, target in pairs}


def test_both_stages_have_one_base_of_a_python_that_is_supported():
    (base,) = {line.split()[0] for line in told("FROM")}
    assert base in {f"docker.io/library/python:{version}-slim-bookworm" for version in PYTHONS}


def test_each_file_that_is_copied_is_there():
    ours = [line.split()[:-1] for line in told("COPY") if not line.startswith("--from")]
    assert ours == [["."]]
    assert "packaging" not in (ROOT / ".dockerignore").read_text().split()  # it is built from all but what is left out


def test_the_extras_that_are_installed_exist():
    (extras,) = re.findall(r"'\.\[(.*?)\]'", " ".join(told("RUN")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) == project["optional-dependencies"].keys() - {"dev"}


def test_exposed_ports_are_those_of_the_settings():
    assert sorted(map(int, " ".join(told("EXPOSE")).split())) == sorted(PUBLIC.values())
    assert variables()["BEANLITE_HEALTH"] == f"0.0.0.0:{PUBLIC['health']}"
    assert f"http://127.0.0.1:{PUBLIC['health']}/healthz" in " ".join(told("HEALTHCHECK"))
    for key, name in (("web", "page"), ("health", "health")):
        assert Settings.model_fields[key].examples == [f"127.0.0.1:{PUBLIC[name]}"]


def test_image_is_run_by_a_user_that_owns_the_volume():
    (user,), (volume,) = told("USER"), told("VOLUME")
    assert f"--uid {user} " in told("RUN")[-1]
    assert f"-m 700 {volume}" in told("RUN")[-1]
    assert variables()["BEANLITE_DB"].startswith(f"{volume}/")


def test_variables_of_image_and_example_are_settings(compose, monkeypatch):
    for name, value in (variables() | compose["services"]["beanlite"]["environment"]).items():
        monkeypatch.setenv(name, value)
    settings = sources.load()
    assert settings.web == f"0.0.0.0:{PUBLIC['page']}"
    assert settings.web_password_file in mounts(compose["services"]["beanlite"]).values()


def test_example_mounts_files_that_are_there(compose):
    all_of_them = [file for service in compose["services"].values() for file in mounts(service)]
    assert len(all_of_them) == 5
    assert [file.relative_to(ROOT) for file in all_of_them if not file.exists()] in ([Path(USERS)], [])
    for ignored in (".gitignore", ".dockerignore"):  # whoever makes it keeps it to themselves
        assert USERS in [line.strip("/") for line in (ROOT / ignored).read_text().split()]
    assert f">{USERS}\n" in (FOLDER / "compose.yaml").read_text()


def test_example_makes_its_users_as_the_docs_do():
    docs = (ROOT / "docs/installing.md").read_text()
    (command,) = re.findall("^(.*podman run .* --add-user .*) > users$", docs, re.MULTILINE)
    assert f"#   {command} >{USERS}\n" in (FOLDER / "compose.yaml").read_text()


def test_example_builds_the_image_and_keeps_what_it_stores(compose):
    build = compose["services"]["beanlite"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Containerfile"
    stored = [volume for service in compose["services"].values() for volume in service["volumes"] if volume[0] != "."]
    assert sorted(volume.split(":")[0] for volume in stored) == sorted(compose["volumes"])
    assert f"jobs:{told('VOLUME')[0]}" in stored


def test_example_publishes_for_this_machine_alone(compose):
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    ours = [int(port.split(":")[2]) for port in compose["services"]["beanlite"]["ports"]]
    assert ours == [PUBLIC["queue"], PUBLIC["page"]]


def test_grafana_of_the_example_has_the_dashboard_and_its_data(compose):
    files = mounts(compose["services"]["grafana"])
    provisioning = FOLDER / "grafana"
    assert files[provisioning] == Path("/etc/grafana/provisioning")
    (provider,) = yaml.safe_load((provisioning / "dashboards/beanlite.yml").read_text())["providers"]
    dashboard = ROOT / "packaging/prometheus/dashboard.json"
    assert Path(provider["options"]["path"]) == files[dashboard].parent
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    name, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:{port}" in compose["services"][name]["ports"]
    (kind,) = [
        each["query"]
        for each in json.loads(dashboard.read_text())["templating"]["list"]
        if each["name"] == "datasource"
    ]
    assert source["type"] == kind


def test_dashboard_of_the_example_leads_to_its_page(compose):
    dashboard = json.loads((ROOT / "packaging/prometheus/dashboard.json").read_text())
    (variable,) = [each for each in dashboard["templating"]["list"] if each["name"] == "page"]
    place = variable["query"].removeprefix("http://")
    assert f"{place}:{PUBLIC['page']}" in compose["services"]["beanlite"]["ports"]


def test_prometheus_of_the_example_asks_the_server_and_has_the_alerts(compose):
    files = mounts(compose["services"]["prometheus"])
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"beanlite:{PUBLIC['health']}"]}]
    assert job["job_name"] in (ROOT / "packaging/prometheus/alerts.yml").read_text()
    (rules,) = settings["rule_files"]
    assert files[ROOT / "packaging/prometheus"] / "alerts.yml" == files[FOLDER / "prometheus.yml"].parent / rules
