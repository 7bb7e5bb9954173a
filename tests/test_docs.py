"""What the documentation leaves out, or names although it is not there, fails here."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import typer

from beanlite import cli, config
from beanlite.journal.sqlite.database import open_database
from beanlite.net.refusals import Refusals

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_group(cli.build_app()).commands
LONG_FLAGS = sorted(
    {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in parameter.opts
        if flag.startswith("--")
    }
)


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def manual(readme):
    """What users read: the README, and the page on the operators' commands."""
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("operating.md", "web.md")]
    return "\n".join([readme, *pages])


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_manual(command, manual):
    assert f"beanlite {command}" in manual


@pytest.mark.parametrize("flag", LONG_FLAGS)
def test_each_flag_is_in_the_manual(flag, manual):
    assert re.search(rf"(?<![\w-]){flag}(?![\w-])", manual)


@pytest.mark.parametrize("key", config.Settings.model_fields)
def test_each_setting_is_in_the_readme(key, readme):
    """By its flag, its variable or its name in the file."""
    assert re.search(rf"(?<![\w-])({config.flag(key)}|{config.variable(key)}|`{key}`)(?![\w-])", readme)


@pytest.mark.parametrize("limit", Refusals().counts)
def test_each_kind_of_refusal_is_in_the_manual(limit, readme):
    assert f"`refused-{limit}`" in readme  # in stats
    assert f"`{limit}`" in (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")


def test_the_example_of_a_view_shows_its_columns(readme, tmp_path):
    found = re.search(r"^\$ sqlite3 beanlite.db '(.+)' -header -column\n(.+)$", readme, re.MULTILINE)
    assert found
    open_database(tmp_path / "queue.db").close()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        columns = [column[0] for column in connection.execute(found[1]).description]
    assert found[2].split() == columns


PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
TOP = {entry.name for entry in ROOT.iterdir()}


def paths(page):
    """The files and folders of the repository that a page names in code, and those that it links to."""
    text = (ROOT / page).read_text(encoding="utf-8")
    in_code = {code.rstrip("/") for code in re.findall(r"`([^`\n]+)`", text) if PATH.fullmatch(code)}
    named = {ROOT / code for code in in_code if "/" in code and code.partition("/")[0] in TOP}
    named |= {ROOT / code for code in in_code if re.search(r"\w\.(md|py|toml|yaml)$", code) and "/" not in code}
    links = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}
    return named | {(ROOT / page).parent / link for link in links if link and "://" not in link}


def test_paths_are_found_in_what_a_page_says():
    assert ROOT / "tests/protocol/test_costs.py" in paths("CONTRIBUTING.md")
    assert ROOT / "docs/../CONTRIBUTING.md" in paths("docs/architecture.md")
    assert ROOT / "docs/throughput.svg" in paths("docs/performance.md")


@pytest.mark.parametrize("page", PAGES)
def test_each_file_that_a_page_names_exists(page):
    assert [str(path.relative_to(ROOT)) for path in sorted(paths(page)) if not path.exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_link_to_a_heading_finds_it(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s:]*#[^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        linked = ((ROOT / page).parent / file if file else ROOT / page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", linked, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# max_job_size is beanstalkd's -z.
OWN_LIMITS = [key for key in config.Settings.model_fields if key.startswith("max_") and key != "max_job_size"]


@pytest.mark.parametrize("key", OWN_LIMITS)
def test_each_limit_that_beanstalkd_does_not_have_is_a_difference(key, readme):
    assert f"`{key}`" in readme.partition("## Differences from beanstalkd")[2]
