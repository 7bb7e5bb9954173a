"""What an installation says of itself, which is also what PyPI shows."""

import re
from email import message_from_string
from importlib.metadata import distribution

import pytest

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def told():
    """The metadata of the installation; after a change of pyproject.toml, install it again."""
    return message_from_string(distribution("beanlite").read_text("METADATA") or "")


def requirements(told, extra=None):
    """The names of the packages that the extra needs, or those that every installation needs."""
    all_of_them = [
        re.split(r"[^\w-]", each)[0:1] + re.findall(r"extra == ['\"](\w+)", each)
        for each in told.get_all("Requires-Dist")
    ]
    return {name for name, *extras in all_of_them if extras == ([extra] if extra else [])}


def test_the_licence_is_an_expression_with_its_file(told):
    assert (told["License-Expression"], told.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert not [each for each in told.get_all("Classifier") if each.startswith("License ::")]


def test_the_classifiers_name_linux_and_each_python(told):
    classifiers = told.get_all("Classifier")
    assert [each for each in classifiers if each.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"
    ]
    assert [each for each in classifiers if re.search(r":: 3\.\d", each)] == [
        f"Programming Language :: Python :: {version}" for version in PYTHONS
    ]


def test_no_link_of_the_description_depends_on_where_it_is_shown(told):
    text = told.get_payload()
    assert told["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# beanlite\n")
    assert not re.findall(r"\]\((?!https://)[^)]*\)|\]:\s*(?!https://)\S+|(?:src|href)=|^!", text, re.MULTILINE)
    assert "](https://" in text  # those that lead somewhere are left


@pytest.mark.parametrize("name", ["argon2-cffi", "jinja2", "starlette", "uvicorn"])
def test_every_installation_can_serve_the_page(name, told):
    assert name in requirements(told)


def test_what_only_top_needs_is_an_extra(told):
    assert "textual" not in requirements(told)
    assert requirements(told, "top") == {"textual"}


def test_the_extras(told):
    assert set(told.get_all("Provides-Extra")) == {"dev", "postgres", "top"}
