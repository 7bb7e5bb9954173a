"""What the documentation leaves out, or names although it is not there, fails here."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import typer

from beanlite import cli
from beanlite.cli.serve import EXIT_CODES
from beanlite.errors import BeanliteError
from beanlite.host import signals
from beanlite.journal.sqlite.file.database import open_database
from beanlite.net.refusals import Refusals
from beanlite.server.reload import APPLIED
from beanlite.settings import config
from tests import reference_files
from tests.bench import __main__ as bench

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_group(cli.build_app()).commands
LONG_FLAGS = sorted(
    {
        flag
        for command in (*COMMANDS.values(), typer.main.get_command(bench.app))
        for parameter in command.params
        for flag in parameter.opts
        if flag.startswith("--")
    }
)


DOCS = ROOT / "docs"
OUTDATED = "run python -m tests.reference_files"


def text_of(name):
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def manual():
    """What users read: all pages but those about the insides."""
    return "\n".join(
        text_of(file.name)
        for file in DOCS.glob("*.md")
        if file.stem not in {"adding", "architecture", "performance-lab"}
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_manual(command, manual):
    assert f"beanlite {command}" in manual


@pytest.mark.parametrize("flag", LONG_FLAGS)
def test_each_flag_is_in_the_manual(flag, manual):
    assert re.search(rf"(?<![\w-]){flag}(?![\w-])", manual)


def test_the_reference_page_is_made_from_the_sources():
    assert reference_files.made(text_of("reference.md")) == text_of("reference.md"), OUTDATED


def test_the_page_of_the_client_is_made_from_the_sources():
    page = text_of("python-client.md")
    assert reference_files.made(page, reference_files.client_reference) == page, OUTDATED


def test_example_file_is_made_from_the_sources():
    assert reference_files.example() == reference_files.EXAMPLE.read_text(encoding="utf-8"), OUTDATED


def test_the_exit_codes_are_those_of_the_errors():
    assert set(EXIT_CODES) == {0} | {error.exit_code for error in kinds_of(BeanliteError)}


def kinds_of(error):
    """An error and all that are derived from it."""
    return {error}.union(*map(kinds_of, error.__subclasses__()))


def test_the_reference_page_has_the_signals():
    table = text_of("reference.md").partition("\n## Signals\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (SIG[\w, ]+) \|", table, re.MULTILINE)
    heard = {*signals.STOPS, signals.DRAINS, signals.RELOADS}
    assert set(", ".join(rows).split(", ")) == {signal.name for signal in heard}


def test_reference_page_says_when_reloaded_settings_take_effect():
    table = text_of("reference.md").partition("| takes effect |")[2].partition("\n\n")[0]
    named = [key for row in table.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1:2][0] if row else "")]
    assert sorted(named) == sorted(APPLIED)


@pytest.mark.parametrize("limit", Refusals().counts)
def test_each_kind_of_refusal_is_in_the_manual(limit):
    assert f"`refused-{limit}`" in text_of("differences.md")  # in stats
    assert f"`{limit}`" in text_of("monitoring.md")


def test_the_example_of_a_view_shows_its_columns(tmp_path):
    found = re.search(r"^\$ sqlite3 beanlite.db '(.+)' -header -column\n(.+)$", text_of("database.md"), re.MULTILINE)
    assert found
    open_database(tmp_path / "queue.db").close()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        columns = [column[0] for column in connection.execute(found[1]).description]
    assert found[2].split() == columns


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 900


def test_the_index_has_each_page_once():
    linked = re.findall(r"^- \[.+?\]\((.+?)\): ", text_of("README.md"), re.MULTILINE)
    assert sorted(linked) == sorted(file.name for file in DOCS.glob("*.md") if file.name != "README.md")


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
    assert ROOT / "docs/throughput.svg" in paths("docs/performance-lab.md")


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


@pytest.mark.parametrize("page", PAGES)
def test_each_heading_stands_between_empty_lines(page):
    text = re.sub(r"^```.+?^```", "code", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = ["", *text.splitlines(), ""]
    headings = [number for number, line in enumerate(lines) if re.match("#+ ", line)]
    assert headings
    assert [lines[number] for number in headings if lines[number - 1] or lines[number + 1]] == []


# max_job_size is beanstalkd's -z.
OWN_LIMITS = [key for key in config.Settings.model_fields if key.startswith("max_") and key != "max_job_size"]


@pytest.mark.parametrize("key", OWN_LIMITS)
def test_each_limit_that_beanstalkd_does_not_have_is_a_difference(key):
    assert f"`{key}`" in text_of("differences.md")
