"""The settings: where they come from, what is refused and how that is said, and the example file."""

import re
import tomllib
from pathlib import Path

import pytest

from beanlite.errors import ConfigError
from beanlite.settings import config, sources

pytestmark = pytest.mark.usefixtures("clean_environment")

EXAMPLE = Path(__file__).parent.parent / "config.example.toml"
FIELDS = config.Settings.model_fields


@pytest.fixture
def file(tmp_path):
    return tmp_path / "beanlite.toml"


def refusal(*args) -> str:
    with pytest.raises(ConfigError) as caught:
        sources.load(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_source_wins_over_the_one_before(file, monkeypatch):
    file.write_text('port = 1\nmax_job_size = 1\nhost = "file"\n')
    monkeypatch.setenv("BEANLITE_PORT", "2")
    monkeypatch.setenv("BEANLITE_MAX_JOB_SIZE", "2")
    settings = sources.load(file, {"port": "3"})
    assert (settings.port, settings.max_job_size, settings.host, settings.max_connections) == (3, 2, "file", 10000)


def test_a_flag_can_take_back_what_the_file_set(file):
    file.write_text('socket = "/run/x.sock"\n')
    assert sources.load(file).socket == Path("/run/x.sock")
    assert sources.load(file, {"socket": None}).socket is None


def test_a_process_of_ours_inherits_no_setting_and_no_word_of_systemd(monkeypatch):
    for name in ("BEANLITE_PORT", "beanlite_host", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "ANOTHER"):
        monkeypatch.setenv(name, "1")
    inherited = sources.bare_environment()
    assert inherited.keys() >= {"ANOTHER", "PATH"}
    theirs = ("BEANLITE_", "NOTIFY_", "WATCHDOG_", "LISTEN_")
    assert [name for name in inherited if name.upper().startswith(theirs)] == []


def test_an_empty_variable_counts_as_none(monkeypatch):
    monkeypatch.setenv("BEANLITE_PORT", "")
    monkeypatch.setenv("BEANLITE_SOCKET", "")
    assert (sources.load().port, sources.load().socket) == (11300, None)
    assert sources.examine().origins["port"] == "default"


@pytest.mark.parametrize("name", ["db", "socket", "backup_dir"])
def test_an_empty_path_does_not_mean_the_current_folder(name):
    with pytest.raises(ConfigError, match=f"{name} = '' is not allowed"):
        sources.load(None, {name: ""})


@pytest.mark.parametrize("key", ["db", "socket", "backup_dir", "user"])
def test_a_nul_that_no_system_call_takes(key, file):
    file.write_text(f'{key} = "a\\u0000b"\n')
    assert refusal(file) == f"{file}: {key} = 'a\\x00b' is not allowed; {key}: {FIELDS[key].description}"


def test_a_directory_as_database_means_the_file_in_it(tmp_path):
    assert sources.load(None, {"db": str(tmp_path)}).db == tmp_path / "beanlite.db"
    assert sources.load(None, {"db": str(tmp_path / "jobs")}).db == tmp_path / "jobs"


@pytest.mark.parametrize(
    ("text", "interval_ms"),
    [("always", 0), ("0ms", 0), ("1ms", 1), ("50ms", 50), ("999999999ms", 999_999_999), ("never", None)],
)
def test_fsync(text, interval_ms):
    assert sources.load(None, {"fsync": text}).fsync_interval_ms == interval_ms


@pytest.mark.parametrize("text", ["", "50", "ms", "-1ms", "1.5ms", "50 ms", "50ms\n", "Always", "1s", "9999999999ms"])
def test_fsync_refused(text):
    assert refusal(None, {"fsync": text}) == (
        f"--fsync: fsync = {text!r} is not allowed; fsync: when commits are synced to disk: always"
        " (before their replies), never, or once per interval in milliseconds, such as 50ms"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", ""),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "http"),
        ("journal", "perhaps"),
        ("max_job_size", "0"),
        ("max_job_size", "999999001"),
        ("max_connections", "0"),
        ("web", "11380"),
        ("web", "0.0.0.0:none"),
        ("user", ""),
        ("log_level", "INFO"),
        ("log_format", "xml"),
    ],
)
def test_a_wrong_value_names_its_source_and_what_is_allowed(key, value, file, monkeypatch):
    said = f"{key} = {value!r} is not allowed; {key}: {FIELDS[key].description}"
    assert refusal(None, {key: value}) == f"{config.flag(key)}: {said}"
    file.write_text(f'{key} = "{value}"\n')
    assert refusal(file) == f"{file}: {said}"
    if value:  # an empty variable is none
        monkeypatch.setenv(f"BEANLITE_{key.upper()}", value)
        assert refusal(file) == f"BEANLITE_{key.upper()}: {said}"


NUMBERS = [key for key, field in FIELDS.items() if re.search(r"\b(int|ByteSize)\b", str(field.annotation))]


@pytest.mark.parametrize("key", NUMBERS)
def test_true_is_no_number(key, file):
    for word, value in (("true", True), ("false", False)):
        file.write_text(f"{key} = {word}\n")
        said = f"{file}: {key} = {value} is not allowed; {key}: {FIELDS[key].description}"
        assert refusal(file) == said


@pytest.mark.parametrize("value", ["nonsense", "/var/lib/beanlite.db", "", "mysql://q:secret@host/db", "host=a user=b"])
def test_what_is_no_url_of_a_database_is_told_without_its_password(value):
    wanted = "the URL of a database begins with postgresql://, as in postgresql://beanlite@db1,db2/queue"
    assert refusal(None, {"database": value}) == wanted


@pytest.mark.parametrize("value", ['["{}"]', '{{ url = "{}" }}', '{{ a = [{{ b = "{}" }}] }}', '[["{}"], "{}"]'])
def test_a_secret_of_another_type_is_not_shown(value, file):
    file.write_text(f"database = {value.format(*['postgresql://q:secret@host/db'] * 2)}\n")
    said = f"{file}: the value of database is not allowed; database: {FIELDS['database'].description}"
    assert refusal(file) == said


def test_a_secret_that_is_a_number_is_not_shown(file):
    file.write_text("database = 4711\n")
    assert "4711" not in refusal(file)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_database_in_place_of_a_file_is_told_without_its_password(scheme):
    url = f"{scheme}://q:secret@host/db"
    assert refusal(None, {"db": url}) == "db is the path of a file; the setting for a PostgreSQL database is database"
    assert sources.load(None, {"database": url}).database.get_secret_value() == url


@pytest.mark.parametrize(("key", "value"), [("port", "0"), ("port", "65535"), ("max_job_size", "999999000")])
def test_the_limits_themselves_are_allowed(key, value):
    assert getattr(sources.load(None, {key: value}), key) == int(value)


@pytest.mark.parametrize("where", ["127.0.0.1:11380", "127.8.8.8:0", "[::1]:11380", "localhost:65535"])
def test_where_only_this_machine_reaches_the_page(where):
    assert sources.load(None, {"web": where}).web == where


@pytest.mark.parametrize("where", ["0.0.0.0:11380", "10.1.2.3:0", "[::]:11380", "queue.example.org:11380"])
def test_where_others_reach_the_page_it_needs_its_users(where):
    said = f"web = {where} needs web_password_file: everybody could change anything"
    assert refusal(None, {"web": where}) == said
    assert sources.load(None, {"web": where, "web_password_file": "users"}).web == where


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prot = 1", "unknown key prot; did you mean port?"),
        ("max-job-size = 1", "unknown key max-job-size; did you mean max_job_size?"),
        ("[server]\nport = 1", "unknown key server"),
    ],
)
def test_an_unknown_key_of_the_file_is_named(line, said, file):
    file.write_text(line)
    assert refusal(file) == f"{file}: {said}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("BEANLITE_PROT", "BEANLITE_PROT; did you mean BEANLITE_PORT?"),
        ("beanlite_prot", "beanlite_prot; did you mean BEANLITE_PORT?"),
        ("BEANLITE_X", "BEANLITE_X"),
    ],
)
def test_an_unknown_variable_is_named(name, said, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert refusal() == f"unknown environment variable {said}"


KUBERNETES = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "11300",
    "SERVICE_PORT_QUEUE": "11300",
    "PORT": "tcp://10.0.0.1:11300",
    "PORT_11300_TCP": "tcp://10.0.0.1:11300",
    "PORT_11300_TCP_PROTO": "tcp",
    "PORT_11300_TCP_PORT": "11300",
    "PORT_11300_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["BEANLITE", "BEANLITE_PROD"])
def test_what_kubernetes_says_of_a_service_of_that_name_is_no_setting(service, monkeypatch):
    for name, value in KUBERNETES.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert sources.load() == config.Settings()
    monkeypatch.setenv("BEANLITE_MAX_JOB_SIZE", "1")
    assert sources.load() == config.Settings(max_job_size=1)


def test_files_that_can_not_be_used(file, tmp_path):
    assert refusal(file) == f"{file}: the configuration file can't be read: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: the configuration file can't be read: Is a directory"
    file.write_text("port = \n")
    assert refusal(file).startswith(f"{file}: the configuration file is not TOML: ")
    assert "line 1" in refusal(file)
    file.write_bytes(b'host = "\xff"\n')
    assert refusal(file).startswith(f"{file}: the configuration file is not TOML: ")


def test_settings_do_not_change_while_the_server_runs():
    with pytest.raises(ValueError, match="frozen"):
        sources.load().port = 1  # type: ignore[misc]  # mypy knows it, too


def test_the_example_equals_the_defaults():
    assert sources.load(EXAMPLE) == sources.load()


@pytest.mark.parametrize(("every", "seconds"), [("1s", 1), ("30m", 1800), ("24h", 86400), ("7d", 604_800)])
def test_the_time_between_backups(every, seconds):
    assert sources.load(None, {"backup_every": every, "backup_dir": "x"}).backup_every_s == seconds
    assert sources.load().backup_every_s is None


@pytest.mark.parametrize("every", ["0s", "24", "h", "1w", "1.5h", "-1h", ""])
def test_what_is_no_time_between_backups(every):
    assert "backup_every: time from one backup to the next" in refusal(None, {"backup_every": every, "backup_dir": "x"})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"backup_every": "1h"}, "backup_every and backup_dir need each other"),
        ({"backup_dir": "x"}, "backup_every and backup_dir need each other"),
        ({"backup_every": "1h", "backup_dir": "x", "journal": False}, "backup_every is of no use without a database"),
        ({"web_password_file": "users"}, "web_password_file is of no use without web"),
        ({"history": "7d", "journal": False}, "history is of no use without a database, as with --no-journal"),
    ],
)
def test_settings_that_contradict_each_other(flags, said):
    assert refusal(None, flags).startswith(said)


def test_a_file_for_jobs_that_are_in_postgresql(file, monkeypatch):
    url = "postgresql://a:secret@b/c"
    file.write_text(f'database = "{url}"\ndb = "x"\nrequire_sync = false\n')
    assert sources.load(file).file is None
    assert refusal(file, {"db": "y"}) == f"--db and database ({file}) exclude each other"
    assert sources.load(file, {"db": "y", "database": None}).file == Path("y")
    monkeypatch.setenv("BEANLITE_DATABASE", url)
    for each in (file, None):
        assert refusal(each, {"db": "y"}) == "--db and database (BEANLITE_DATABASE) exclude each other"


def test_what_is_for_the_database_file_is_refused_beside_postgresql(file):
    url = "postgresql://b/c"
    said = "fsync is for the database file, and there is none with database"
    assert refusal(None, {"database": url, "fsync": "50ms"}) == said
    file.write_text(f'database = "{url}"\nfsync = "50ms"\n')
    assert refusal(file, {}) == said


def test_the_example_file_takes_a_database_as_well(file):
    """It sets what is for the file to the default, and the package installs it."""
    file.write_text(EXAMPLE.read_text().replace("\n# database = ", "\ndatabase = "))
    assert sources.load(file).database is not None


def test_history_is_kept_in_postgresql_as_well():
    flags = {"history": "1d", "history_bytes": "2MiB", "history_bodies": True}
    assert sources.load(None, {"database": "postgresql://b/c", **flags}).history_s == 86_400


def test_a_file_for_jobs_that_are_to_stay_in_memory(file, monkeypatch):
    """Who names a file believes that the jobs are kept in it."""
    file.write_text('journal = false\ndb = "x"\n')
    assert sources.load(file).file is None
    assert refusal(file, {"db": "y"}) == f"--db and journal = false ({file}) exclude each other"
    assert sources.load(file, {"db": "y", "journal": True}).file == Path("y")
    monkeypatch.setenv("BEANLITE_JOURNAL", "false")
    for each in (file, None):
        assert refusal(each, {"db": "y"}) == "--db and journal = false (BEANLITE_JOURNAL) exclude each other"
    monkeypatch.setenv("BEANLITE_JOURNAL", "true")
    assert sources.load(file, {"db": "y"}).file == Path("y")


@pytest.mark.parametrize("key", FIELDS)
def test_the_example_documents_each_setting(key):
    """Its description, which has the unit, stands above the key; only what has no default is commented out."""
    field = FIELDS[key]
    found = re.search(rf"((?:^# .*\n)+)(# )?{key} = ", EXAMPLE.read_text(), re.MULTILINE)
    assert found, f"config.example.toml has no {key}"
    comment = " ".join(found[1].replace("# ", "").lower().split())
    assert field.description is not None
    assert field.description.lower() in comment
    assert bool(found[2]) == (field.default is None)
    if field.default is None:
        assert "default: none" in comment


def test_the_example_has_the_order_of_the_settings():
    keys = list(tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)))
    assert keys == list(FIELDS)
