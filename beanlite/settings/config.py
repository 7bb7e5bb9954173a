"""Every setting, its default, its unit and its check.

Later sources win: defaults, the TOML file, the environment (``BEANLITE_PORT`` for ``port``), flags.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
)

from beanlite.errors import ConfigError, missing
from beanlite.host.places import host_and_port
from beanlite.settings.defaults import ENV_PREFIX, HOST, PORT
from beanlite.settings.values import (
    DB_NAME,
    HISTORY_LEAST,
    MAX_JOB_SIZE_LIMIT,
    MEMORY_LEAST,
    DbPath,
    Duration,
    GivenPath,
    Whole,
    default_db,
    is_postgresql,
    of_address,
    of_loopback,
    of_operators,
    of_place,
    seconds,
)

# Kubernetes sets these in each container for a service whose name begins with beanlite; they are not settings.
_OF_A_SERVICE = re.compile(
    r"BEANLITE_(\w+_)?"
    r"(SERVICE_(HOST|PORT(_\w+)?)=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=(tcp|udp|sctp)://)"
)


class Settings(BaseModel):
    """The settings of a server; ``--help`` and errors print their descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(HOST, min_length=1, description="address or host name to listen on")
    port: Whole = Field(PORT, ge=0, le=65535, description="TCP port to listen on, 0 to 65535; 0 picks any free port")
    socket: GivenPath | None = Field(None, description="path of a Unix socket to listen on, instead of host and port")
    db: DbPath = Field(
        Path(DB_NAME), description=f"path of the database file; if it is a directory, the file {DB_NAME} in it"
    )
    database: SecretStr | None = Field(
        None,
        description="URL of a PostgreSQL database, such as postgresql://beanlite@db1,db2/queue, to keep jobs in instead"
        " of a file; a second server with the same database stands by",
    )
    require_sync: bool = Field(
        default=True,
        description="whether a PostgreSQL database without a synchronous standby is refused (true) or accepted (false)",
    )
    lease: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,2}s$")] = Field(
        "3s",
        description="how long the active server must be silent before a standby server takes over, 1s to 999s; the"
        " same on both",
    )
    node: str | None = Field(
        None,
        min_length=1,
        description="name of this server in the database and in the logs of other servers; if unset, host and address",
    )
    standby: Literal["refuse", "forward"] = Field(
        "refuse",
        description="what a standby server does with clients: refuse them, which shows that it is not the active one,"
        " or forward them to the active one",
    )
    advertise: Annotated[str, AfterValidator(of_place)] | None = Field(
        None,
        description="host and port, such as 10.0.0.5:11300, at which a standby server reaches this one; if unset, the"
        " address that this one listens on",
    )
    fsync: Annotated[str, StringConstraints(pattern=r"^(always|never|[0-9]{1,9}ms)$")] = Field(
        "always",
        description="when commits are synced to disk: always (before their replies), never, or at least once per"
        " interval in milliseconds, such as 50ms",
    )
    journal: bool = Field(
        default=True, description="whether jobs are kept in the database (true) or in memory only (false)"
    )
    max_job_size: Whole = Field(
        65535, ge=1, le=MAX_JOB_SIZE_LIMIT, description=f"largest job body in bytes, 1 to {MAX_JOB_SIZE_LIMIT}"
    )
    max_connections: Whole = Field(
        10000, ge=1, description="maximum number of connections, 1 or more; further ones are closed at once"
    )
    max_connections_per_address: Whole | None = Field(
        None,
        ge=1,
        description="maximum number of connections from one address, 1 or more; further ones are closed at once",
    )
    max_watched: Whole = Field(
        1000, ge=1, description="maximum number of tubes that a client may watch, 1 or more; further ones are refused"
    )
    max_tubes: Whole = Field(
        200_000, ge=1, description="maximum number of tubes, 1 or more; clients can't create further ones"
    )
    max_memory: ByteSize | None = Field(
        None,
        ge=MEMORY_LEAST,
        description="memory for jobs and everything else that grows with use, in bytes or as 512MiB, at least 16MiB;"
        " when it is used up, puts are answered OUT_OF_MEMORY",
    )
    body_memory: ByteSize | None = Field(
        None,
        ge=MEMORY_LEAST,
        description="how much of max_memory job bodies may take, in bytes or as 512MiB, at least 16MiB; other bodies"
        " stay in the database until they are needed",
    )
    backup_every: Duration | None = Field(
        None, description="time from one backup to the next, such as 30m, 24h or 7d; if unset, none are made"
    )
    backup_dir: GivenPath | None = Field(None, description="folder for these backups; it must exist")
    backup_keep: Whole = Field(7, ge=1, description="number of these backups to keep, 1 or more")
    history: Duration | None = Field(
        None,
        description="how long the database keeps a record of what happened to each job, such as 12h or 7d; if unset,"
        " only what operators do is recorded",
    )
    history_bytes: ByteSize = Field(
        ByteSize(1 << 30),
        ge=HISTORY_LEAST,
        description="maximum size of the history, in bytes or as 512MiB, at least 1MiB; the oldest events go first",
    )
    history_bodies: bool = Field(default=False, description="whether the history includes the bodies of deleted jobs")
    operators: Annotated[str, AfterValidator(of_operators)] = Field(
        "unix, 127.0.0.0/8, ::1",
        description="addresses and networks from which operators' commands are accepted, separated by commas, with"
        " unix for the Unix socket; or none",
    )
    health: Annotated[str, AfterValidator(of_address)] | None = Field(
        None,
        description="address and port, such as 127.0.0.1:11381, at which /healthz, /readyz and /metrics are served;"
        " if unset, they are not",
    )
    metrics_tubes: Whole = Field(
        1000,
        ge=0,
        le=10_000,
        description="number of tubes that have metrics of their own, 0 to 10000; the rest are summed",
    )
    web: Annotated[str, AfterValidator(of_loopback)] | None = Field(
        None,
        description="loopback address and port, such as 127.0.0.1:11380, at which the page in the browser is served;"
        " if unset, it is not",
    )
    user: str | None = Field(
        None, pattern=r"^[^\x00]+$", description="user to become, with its groups, once the sockets are bound"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that is logged: debug, info, warning or error"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="format of the log: text, or json for one object per line"
    )

    @property
    def file(self) -> Path | None:
        """The database file; None if jobs are in memory only, or in PostgreSQL."""
        return self.db if self.journal and self.database is None else None

    @property
    def lease_s(self) -> int:
        """The setting ``lease`` in seconds."""
        return int(self.lease.removesuffix("s"))

    @property
    def connections_per_address(self) -> int:
        """How many connections from one address are served at a time."""
        given = self.max_connections_per_address
        return self.max_connections - self.max_connections // 10 if given is None else given

    @property
    def backup_every_s(self) -> int | None:
        """Seconds from one backup to the next; None if none are made."""
        return seconds(self.backup_every)

    @property
    def health_address(self) -> tuple[str, int]:
        """Host and port of the setting ``health``, which must be set."""
        assert self.health is not None
        return host_and_port(self.health)

    @property
    def history_s(self) -> int | None:
        """Seconds for which the history is kept; None if only what operators do is recorded."""
        return seconds(self.history)

    @property
    def fsync_interval_ms(self) -> int | None:
        """Milliseconds from one sync to the next; 0: each commit is synced before its replies leave; None: never."""
        if self.fsync == "never":
            return None
        return 0 if self.fsync == "always" else int(self.fsync.removesuffix("ms"))


def load(file: Path | None = None, flags: Mapping[str, object] | None = None) -> Settings:
    """Combine the settings from the TOML file, the environment and the flags.

    `flags` has only the flags that were given, by the names of the settings.
    Raises ConfigError for a file that can't be read, an unknown key or a value that isn't allowed.
    """
    settings, found = _examine(file, flags or {})
    if found:
        raise ConfigError(found[0])
    assert settings is not None
    return settings


def mistakes(file: Path | None = None, flags: Mapping[str, object] | None = None) -> list[str]:
    """Everything that is wrong with the settings, one line for each mistake."""
    return _examine(file, flags or {})[1]


def sources(file: Path | None = None, flags: Mapping[str, object] | None = None) -> dict[str, str]:
    """Where each setting comes from: ``default``, the path of the file, the name of the variable, or the flag."""
    flags = flags or {}
    in_file = _read(file) if file else {}
    in_environment = _variables()[0]
    found = dict.fromkeys(Settings.model_fields, "default") | {"db": default_db()[1]}
    found |= dict.fromkeys(in_file, str(file))
    found |= {key: variable(key) for key in in_environment}
    found |= {key: flag(key) for key in flags}
    if flags.get("socket", "") is None:  # --host or --port has taken its place
        found["socket"] = flag("host" if "host" in flags else "port")
    return found


def _examine(file: Path | None, flags: Mapping[str, object]) -> tuple[Settings | None, list[str]]:
    """Read and check everything; returns the settings, or None if a value is not allowed, and all mistakes."""
    found: list[str] = []
    in_file: dict[str, object] = {}
    try:
        in_file = _read(file) if file else {}
    except ConfigError as error:
        found.append(str(error))
    unknown = [key for key in in_file if key not in Settings.model_fields]
    found += [f"{file}: unknown key {key}" + _did_you_mean(key, str) for key in unknown]
    in_file = {key: value for key, value in in_file.items() if key not in unknown}
    in_environment, unknown_variables = _variables()
    found += unknown_variables
    try:
        if in_file or in_environment:
            settings = _from_all_sources(in_file, in_environment, flags)
        else:
            settings = Settings.model_validate(flags)
    except ValidationError as error:
        for each in error.errors():
            key = str(each["loc"][0])
            source = flag(key) if key in flags else _below_flags(key, file, in_environment)
            allowed = Settings.model_fields[key].description
            found.append(f"{source}: {key} = {each['input']!r} is not allowed; {key}: {allowed}")
        return None, found
    if not any("db" in source for source in (flags, in_file, in_environment)):
        # Not by model_copy, which would count it among the settings that were given.
        settings = Settings.model_construct(settings.model_fields_set, **dict(settings) | {"db": default_db()[0]})
    elsewhere = {"journal": ("journal = false", not settings.journal), "database": ("database", settings.database)}
    for key, (said, is_so) in elsewhere.items():
        if "db" in flags and is_so:  # who names a file would lose what they believe to be in it
            other = flag(key) if key in flags else f"{said} ({_below_flags(key, file, in_environment)})"
            found.append(f"--db and {other} exclude each other")
    return settings, found + _contradictions(settings)


def _below_flags(key: str, file: Path | None, in_environment: set[str]) -> str:
    """Where a setting that is not given by a flag comes from, unless it has its default."""
    return variable(key) if key in in_environment else str(file)


def _contradictions(settings: Settings) -> list[str]:
    """Which settings contradict each other, or make no sense."""
    found = []
    if (settings.backup_every is None) != (settings.backup_dir is None):
        found.append("backup_every and backup_dir need each other")
    if settings.database is not None:
        found += _beside_a_database(settings, settings.database.get_secret_value())
    if is_postgresql(str(settings.db)):
        found.append("db is the path of a file; the setting for a PostgreSQL database is database")
    if not settings.journal:
        useless = [key for key in ("backup_every", "history") if getattr(settings, key) is not None]
        found += [f"{key} is of no use without a database, as with --no-journal" for key in useless]
    return found


def _beside_a_database(settings: Settings, url: str) -> list[str]:
    """What is wrong if jobs are kept in PostgreSQL. The URL is not repeated, since it may contain a password."""
    found = []
    if not is_postgresql(url):
        found.append("the URL of a database begins with postgresql://, as in postgresql://beanlite@db1,db2/queue")
    if not settings.journal:
        found.append("database and --no-journal exclude each other")
    if settings.backup_every is not None:
        found.append("backup_every is for the database file; PostgreSQL has backups of its own")
    only_files = sorted(settings.model_fields_set & {"fsync", "history", "history_bytes", "history_bodies"})
    found += [f"{key} is for the database file, and there is none with database" for key in only_files]
    if find_spec("asyncpg") is None:
        found.append(f"database: {missing('asyncpg')}")
    return found


def _from_all_sources(in_file: dict[str, object], in_environment: set[str], flags: Mapping[str, Any]) -> Settings:
    """Read the settings with pydantic-settings. Importing it takes so long that a start with flags alone avoids it."""
    from pydantic_settings import (  # noqa: PLC0415 - as the docstring says
        BaseSettings,
        InitSettingsSource,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
    )

    class AllSources(Settings, BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, validate_default=False)

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del dotenv_settings, file_secret_settings
            ours = {key: value for key, value in env_settings().items() if key in in_environment}  # not Kubernetes's
            return init_settings, InitSettingsSource(settings_cls, ours), InitSettingsSource(settings_cls, in_file)

    given = AllSources(**flags)
    return Settings.model_construct(given.model_fields_set, **dict(given))  # plain Settings, as in every other start


def flag(key: str) -> str:
    """The long flag of a setting."""
    return "--no-journal" if key == "journal" else "--" + key.replace("_", "-")


def variable(key: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + key.upper()


def _read(file: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: the configuration file can't be read: {error.strerror}") from error
    except ValueError as error:  # malformed TOML, or not UTF-8
        raise ConfigError(f"{file}: the configuration file is not TOML: {error}") from error
    return values


def _variables() -> tuple[set[str], list[str]]:
    """The settings for which the environment has a value, and an error for each variable that is not a setting."""
    keys: set[str] = set()
    found: list[str] = []
    for name, value in os.environ.items():
        if not name.lower().startswith(ENV_PREFIX.lower()) or _OF_A_SERVICE.match(f"{name}={value}"):
            continue
        key = name.lower().removeprefix(ENV_PREFIX.lower())
        if key not in Settings.model_fields:  # pydantic-settings would ignore it silently
            found.append(f"unknown environment variable {name}" + _did_you_mean(key, variable))
        elif value:  # an empty variable counts as none
            keys.add(key)
    return keys, found


def bare_environment() -> dict[str, str]:
    """The environment for a process of ours that is given everything it has to know by flags.

    The settings are left out, because some without the others may contradict each other, and so are the variables with
    which systemd addresses the server.
    """
    ours = (ENV_PREFIX, "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}


def _did_you_mean(key: str, spelt: Callable[[str], str]) -> str:
    close = get_close_matches(key, Settings.model_fields, n=1, cutoff=0.7)
    return f"; did you mean {spelt(close[0])}?" if close else ""
