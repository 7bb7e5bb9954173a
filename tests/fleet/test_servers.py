"""The file of servers: which server has a tube, and what is wrong with a file."""

import os
import re

import pytest

from beanlite.errors import ConfigError
from beanlite.fleet.edit import write_move
from beanlite.fleet.servers import Fleet
from tests.protocol.test_costs import calls_of
from tests.support.journal_files import files_of_at_most

THREE = """
    version = 7
    [servers.one]
    number = 1
    connect = "10.0.0.1:11300"
    [servers.two]
    number = 2
    connect = ["tls://10.0.0.2:11300", "tls://10.0.0.3:11300"]
    tubes = ["mail", "mail.*", "*.slow"]
    [servers.three]
    number = 3
    connect = "unix:/run/three"
    tubes = "mail.bulk*"
    hashed = false
"""
TUBES = [b"family-%d.%d" % (number // 2, number) for number in range(2000)]


def load(tmp_path, text):
    file = tmp_path / "servers.toml"
    file.write_text(text)
    return Fleet.load(file)


@pytest.fixture
def fleet(tmp_path):
    return load(tmp_path, THREE)


def test_file_has_servers_with_numbers_and_addresses(fleet):
    assert fleet.version == 7
    assert [(member.name, member.number) for member in fleet.members] == [("one", 1), ("two", 2), ("three", 3)]
    assert fleet.by_number[2].connect == ("tls://10.0.0.2:11300", "tls://10.0.0.3:11300")
    assert fleet.by_name["three"].connect == ("unix:/run/three",)


@pytest.mark.parametrize(
    ("tube", "server"),
    [
        (b"mail", "two"),
        (b"mail.eu", "two"),
        (b"mail.bulk", "three"),  # by the more specific pattern
        (b"mail.bulk.slow", "three"),
        (b"anything.slow", "two"),
    ],
)
def test_tube_belongs_to_the_server_with_the_most_specific_pattern(fleet, tube, server):
    assert fleet.home(tube).name == server
    assert [member.name for member in fleet.homes(tube)] == [server]


def test_other_tubes_are_shared_out_by_the_hash_of_their_family(fleet):
    names = [fleet.home(tube).name for tube in TUBES]
    assert 800 < names.count("one") < 1200
    assert names.count("two") == len(names) - names.count("one")
    assert names[::2] == names[1::2]


def test_hash_stays_as_it_is(fleet):
    """Each router and each view of a fleet has to find the same server, in each version."""
    names = [fleet.home(tube).name for tube in (b"default", b"orders", b"a", b"b", b"c")]
    assert names == ["one", "one", "two", "two", "one"]


def test_another_server_takes_families_without_moving_others(tmp_path, fleet):
    larger = load(tmp_path, THREE.replace("hashed = false", ""))
    moved = {tube: larger.home(tube).name for tube in TUBES if larger.home(tube) != fleet.home(tube)}
    assert set(moved.values()) == {"three"}
    assert 500 < len(moved) < 850


def test_moved_tube_is_put_into_the_new_server_and_reserved_from_both(tmp_path):
    fleet = load(tmp_path, THREE + '[moved]\nmail = { from = "two", to = "one" }\n')
    assert fleet.home(b"mail").name == "one"
    assert [member.name for member in fleet.homes(b"mail")] == ["two", "one"]
    assert fleet.home(b"mail.eu").name == "two"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("number = 1", "number = 2", "servers.two: number 2 is that of one"),
        ("number = 1", "number = 64", "servers.one.number: 64 is more than 63"),
        ("number = 1", "", "servers.one.number: this key is required"),
        ("[servers.one]", '[servers."o ne"]', "servers.o ne: a name has letters, digits, - and _, 32 at most"),
        ('"*.slow"', '"mail.bulk*"', "servers.three: tubes mail.bulk* are those of two"),
        ('"*.slow"', '"ma il"', "servers.two.tubes: 'ma il' is neither the name of a tube nor a pattern"),
        ("hashed = false", "hashes = false", "servers.three.hashes: unknown key"),
        ("hashed = false", 'metrics = "10.0.0.3"', "servers.three.metrics: '10.0.0.3' is not HOST:PORT"),
        ('"10.0.0.1:11300"', '"unix:/run/three"', "servers.three: unix:/run/three is an address of one"),
        (
            '"10.0.0.1:11300"',
            '["10.0.0.1:11300", "10.0.0.2"]',
            "servers.one.connect: '10.0.0.2' is not HOST:PORT, tls://HOST:PORT or unix:PATH",
        ),
        ('"10.0.0.1:11300"', "[]", "servers.one.connect: there are fewer than 1"),
        ("hashed = false", '[moved]\nmail = { from = "x", to = "one" }', "moved.mail: there is no server x"),
        ("hashed = false", '[moved]\nmail = { from = "one", to = "one" }', "moved.mail: both servers are one"),
    ],
)
def test_fault_of_the_file_is_told_with_its_place(tmp_path, old, new, fault):
    with pytest.raises(ConfigError, match=re.escape(fault) + "$"):
        load(tmp_path, THREE.replace(old, new, 1))


def test_each_tube_has_to_belong_to_a_server(tmp_path):
    one = '[servers.one]\nnumber = 1\nhashed = false\nconnect = "localhost:11300"\ntubes = '
    assert load(tmp_path, one + '"*"').home(b"mail").name == "one"
    with pytest.raises(ConfigError, match="some tubes belong to no server"):
        load(tmp_path, one + '"mail"')


def test_targets_of_prometheus_have_the_names_of_their_servers(tmp_path):
    asked = THREE.replace("number = 1", 'number = 1\nmetrics = "10.0.0.1:11381"')
    asked = asked.replace("number = 2", 'number = 2\nmetrics = ["10.0.0.2:11381", "[::1]:11381"]')
    assert load(tmp_path, asked).targets() == [
        {"targets": ["10.0.0.1:11381"], "labels": {"server": "one"}},
        {"targets": ["10.0.0.2:11381", "[::1]:11381"], "labels": {"server": "two"}},
    ]


def test_move_changes_nothing_else_in_the_file(tmp_path):
    file = tmp_path / "servers.toml"
    rows = [
        f'{name} = {{ number = {number}, connect = "h:{number}" }}' for number, name in enumerate(["mail", "a", "b"])
    ]
    file.write_text("[servers]\n" + "\n".join(rows) + "\n")
    with pytest.raises(ConfigError, match="only changed by hand"):
        write_move(file, "mail", "a", "b")
    assert list(Fleet.load(file).by_name) == ["mail", "a", "b"]


def test_changed_file_keeps_its_owner_its_mode_and_the_link_to_it(tmp_path):
    """A router of another user reads it again."""
    file, link = tmp_path / "kept.toml", tmp_path / "servers.toml"
    file.write_text(THREE.replace("    ", ""))
    file.chmod(0o640)
    owner = (os.getuid(), 4711) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(file, *owner)
    link.symlink_to(file.name)
    assert write_move(link, "web", "one", "two").home(b"web").name == "two"
    assert link.is_symlink()
    facts = file.stat()
    assert ((facts.st_uid, facts.st_gid), facts.st_mode & 0o777) == (owner, 0o640)
    assert Fleet.load(file).version == 8


def test_file_that_can_not_be_replaced_stays_alone_and_as_it_was(tmp_path):
    file = tmp_path / "servers.toml"
    text = THREE.replace("    ", "")
    file.write_text(text)
    with files_of_at_most(len(text)), pytest.raises(ConfigError, match="can't be written"):
        write_move(file, "web", "one", "two")
    assert [each.name for each in tmp_path.iterdir()] == ["servers.toml"]
    assert file.read_text() == text


def test_what_is_beside_the_changed_file_stays(tmp_path):
    file, victim, trap = tmp_path / "servers.toml", tmp_path / "victim", tmp_path / "servers.toml.partial"
    file.write_text(THREE.replace("    ", ""))
    victim.write_text("kept")
    trap.symlink_to(victim.name)
    write_move(file, "web", "one", "two")
    assert not file.is_symlink()
    assert victim.read_text() == "kept"
    assert sorted(tmp_path.iterdir()) == [file, trap, victim]


@pytest.mark.parametrize("text", [THREE, THREE.replace("version = 7", ""), f"{THREE}[moved]\n"])
def test_changed_file_keeps_the_ends_of_its_lines(tmp_path, text):
    file = tmp_path / "servers.toml"
    file.write_bytes(text.replace("    ", "").replace("\n", "\r\n").encode())
    assert write_move(file, "web", "one", "two").home(b"web").name == "two"
    assert file.read_bytes().count(b"\n") == file.read_bytes().count(b"\r\n")


def test_server_of_a_tube_is_looked_up_as_fast_among_many_names(tmp_path):
    costs = []
    for number in 1, 500:
        names = ", ".join(f'"team{each}"' for each in range(number))
        fleet = load(tmp_path, THREE.replace('"mail", ', f'"mail", {names}, '))
        assert fleet.home(b"team0").name == "two"
        costs.append(calls_of(lambda fleet=fleet: fleet.home(b"another")))
    assert costs[0] == costs[1]
