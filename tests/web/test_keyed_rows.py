"""A refresh keeps the focus on what it was on: each row of what is refreshed has a key."""

import re
from html.parser import HTMLParser

import pytest

from tests.support.layout import ROOT

TEMPLATES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "web/templates").glob("*.html")}
MACROS = {
    name: body
    for text in TEMPLATES.values()
    for name, body in re.findall(r"{% macro (\w+)\(.*?%}(.*?){% endmacro %}", text, re.DOTALL)
}
VOID = {"input", "img", "br", "meta", "link"}


class Rows(HTMLParser):
    """Finds the rows of tables and lists that are refreshed and have no key."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.keyed = 0
        self.bare = []

    def handle_starttag(self, tag, attrs):
        names = {name for name, _ in attrs}
        is_live = any(live for _, live in self.open)
        if is_live and tag in {"tr", "li"} and "thead" not in dict(self.open):
            if "data-id" in names:
                self.keyed += 1
            else:
                self.bare.append(self.get_starttag_text())
        if tag not in VOID:
            self.open.append((tag, "data-live" in names))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass


def written_out(text):
    """Return a template with what it includes and the macros that it calls, but without Jinja's own words."""
    text = re.sub(r'{% include "(.*?)" %}', lambda found: written_out(TEMPLATES[found[1]]), text)
    text = re.sub(r"{{ (\w+)\(.*?}}", lambda found: written_out(MACROS.get(found[1], "")), text)
    return re.sub(r"{{.*?}}", "x", re.sub(r"{[%#].*?[%#]}", "", text, flags=re.DOTALL), flags=re.DOTALL)


def rows_of(text):
    rows = Rows()
    rows.feed(written_out(text))
    return rows


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_row_that_is_refreshed_has_a_key(name):
    text = re.sub(r"{% macro .*?{% endmacro %}", "", TEMPLATES[name], flags=re.DOTALL)
    assert rows_of(text).bare == []


def test_rows_in_tables_macros_and_included_files_are_looked_at():
    assert rows_of(TEMPLATES["overview.html"]).keyed >= 3  # tubes, two lists of findings, and the values of the chart
    assert rows_of(TEMPLATES["jobs.html"]).keyed >= 3  # jobs, groups, and the others
    assert rows_of("<ul data-live><li><ol><li data-id=x></ol></ul><ul><li></ul>").bare == ["<li>"]
