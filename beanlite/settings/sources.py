"""Where the settings come from, and what is wrong with them.

Later sources win: defaults, the TOML file, the environment (``BEANLITE_PORT`` for ``port``), flags.
"""

import os
import re
import reprlib
import stat
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import SecretStr, ValidationError

from beanlite.errors import ConfigError, missing
from beanlite.settings.config import Settings, flag, variable
from beanlite.settings.defaults import ENV_PREFIX, PAGE_TOKEN, SERVERS, TOKEN
from beanlite.settings.toml_file import parse_toml
from beanlite.settings.values import default_db, is_postgresql

# Kubernetes sets these in each container for a service whose name begins with beanlite; they are not settings.
_OF_A_SERVICE = re.compile(
    r"BEANLITE_(\w+_)?"
    r"(SERVICE_(HOST|PORT(_\w+)?)=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=(tcp|udp|sctp)://)"
)


class Examined(NamedTuple):
    """What the sources have."""

    settings: Settings | None
    """None if a value is not allowed."""
    mistakes: list[str]
    """Everything that is wrong, one line for each mistake."""
    origins: dict[str, str]
    """Where each setting comes from: ``default``, the path of the file, the name of a variable, or a flag."""


def load(file: Path | None = None, flags: Mapping[str, object] | None = None, *, again: bool = False) -> Settings:
    """Combine the settings from the TOML file, the environment and the flags.

    `flags` has only the flags that were given, by the names of the settings. `again`: the server runs by them already.
    Raises ConfigError for a file that can't be read, an unknown key or a value that isn't allowed.
    """
    settings, mistakes, _ = examine(file, flags, again=again)
    if mistakes:
        raise ConfigError(mistakes[0])
    assert settings is not None
    return settings


def _origins(file: Path | None, in_file: Iterable[str], flags: Mapping[str, object]) -> dict[str, str]:
    in_environment = _variables()[0]
    sources = dict.fromkeys(Settings.model_fields, "default") | {"db": default_db()[1]}
    sources |= dict.fromkeys(in_file, str(file))
    sources |= {key: variable(key) for key in in_environment}
    sources |= {key: flag(key) for key in flags}
    if flags.get("socket", "") is None:  # --host or --port has taken its place
        sources["socket"] = flag("host" if "host" in flags else "port")
    return sources


def examine(file: Path | None = None, flags: Mapping[str, object] | None = None, *, again: bool = False) -> Examined:
    """Read and check everything as ``load`` does. The file, which may be a pipe, is read once."""
    flags = flags or {}
    errors: list[str] = []
    in_file: dict[str, object] = {}
    try:
        in_file = _read(file, again=again) if file else {}
    except ConfigError as error:
        errors.append(str(error))
    unknown = [key for key in in_file if key not in Settings.model_fields]
    errors += [f"{file}: unknown key {key}" + _did_you_mean(key, str) for key in unknown]
    in_file = {key: value for key, value in in_file.items() if key not in unknown}
    origins = _origins(file, in_file, flags)
    in_environment, unknown_variables = _variables()
    errors += unknown_variables
    try:
        variables = _read_variables(in_environment) if in_environment else {}
        settings = Settings.model_validate({**in_file, **variables, **flags})
    except ValidationError as error:
        for each in error.errors():
            key = str(each["loc"][0])
            source = flag(key) if key in flags else _below_flags(key, file, in_environment)
            description = Settings.model_fields[key].description
            value = each["input"]
            text = reprlib.repr(value) if isinstance(value, (dict, list)) else repr(value)  # it may be nested deeply
            what = f"the value of {key}" if _is_secret(key) else f"{key} = {text}"
            errors.append(f"{source}: {what} is not allowed; {key}: {description}")
        return Examined(None, errors, origins)
    if not any("db" in source for source in (flags, in_file, in_environment)):
        # Not by model_copy, which would count it among the settings that were given.
        settings = Settings.model_construct(settings.model_fields_set, **dict(settings) | {"db": default_db()[0]})
    elsewhere = {"journal": ("journal = false", not settings.journal), "database": ("database", settings.database)}
    for key, (text, is_so) in elsewhere.items():
        if "db" in flags and is_so:  # who names a file would lose what they believe to be in it
            other = flag(key) if key in flags else f"{text} ({_below_flags(key, file, in_environment)})"
            errors.append(f"--db and {other} exclude each other")
    return Examined(settings, errors + _contradictions(settings), origins)


def _is_secret(key: str) -> bool:
    """Whether the value of a setting is not to be shown."""
    kind = Settings.model_fields[key].annotation
    return SecretStr in (kind, *get_args(kind))


def _below_flags(key: str, file: Path | None, in_environment: set[str]) -> str:
    """Return where a setting that is not given by a flag comes from, unless it has its default."""
    return variable(key) if key in in_environment else str(file)


def _contradictions(settings: Settings) -> list[str]:
    """Return which settings contradict each other, or make no sense."""
    errors = []
    if (settings.backup_every is None) != (settings.backup_dir is None):
        errors.append("backup_every and backup_dir need each other")
    errors += _of_the_page(settings)
    if settings.tls is not None:
        missing_files = [key for key in ("tls_cert", "tls_key") if getattr(settings, key) is None]
        errors += [f"tls needs {key}" for key in missing_files]
        if settings.standby == "forward":
            errors.append("tls and standby = forward exclude each other")
    else:
        useless = [key for key in ("tls_cert", "tls_key", "tls_clients") if getattr(settings, key) is not None]
        errors += [f"{key} is of no use without tls, the address to listen on" for key in useless]
    if settings.access is not None and settings.standby == "forward":
        errors.append("access and standby = forward exclude each other: clients would have the address of the standby")
    if settings.database is not None:
        errors += _beside_a_database(settings, settings.database.get_secret_value())
    if is_postgresql(str(settings.db)):
        errors.append("db is the path of a file; the setting for a PostgreSQL database is database")
    if not settings.journal:
        useless = [key for key in ("backup_every", "history") if getattr(settings, key) is not None]
        errors += [f"{key} is of no use without a database, as with --no-journal" for key in useless]
    return errors


def _of_the_page(settings: Settings) -> list[str]:
    """Return what is wrong with the settings of the page in the browser."""
    errors = []
    if (settings.web_tls_cert is None) != (settings.web_tls_key is None):
        errors.append("web_tls_cert and web_tls_key need each other")
    elif settings.web_tls_cert is not None and settings.web is None:
        errors.append("web_tls_cert is of no use without web")
    if settings.web_password_file is not None and settings.web is None:
        errors.append("web_password_file is of no use without web")
    if settings.is_page_open:
        errors.append(page_is_open(settings))
    return errors


def page_is_open(settings: Settings) -> str:
    """Return what is wrong if everybody could change jobs through the page."""
    return f"web = {settings.web} needs web_password_file: everybody could change anything"


def _beside_a_database(settings: Settings, url: str) -> list[str]:
    """Return what is wrong if jobs are kept in PostgreSQL. The URL is not repeated, since it may contain a password."""
    errors = []
    if not is_postgresql(url):
        errors.append("the URL of a database begins with postgresql://, as in postgresql://beanlite@db1,db2/queue")
    if not settings.journal:
        errors.append("database and --no-journal exclude each other")
    if settings.backup_every is not None:
        errors.append("backup_every is for the database file; PostgreSQL has backups of its own")
    if settings.fsync != Settings.model_fields["fsync"].default:  # the example file sets the default
        errors.append("fsync is for the database file, and there is none with database")
    if find_spec("asyncpg") is None:
        errors.append(f"database: {missing('asyncpg')}")
    return errors


def _read_variables(keys: set[str]) -> dict[str, object]:
    """Read these settings with pydantic-settings. Importing it takes so long that starts without variables avoid it."""
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415 - as the docstring says

    values = EnvSettingsSource(Settings, env_prefix=ENV_PREFIX, env_ignore_empty=True)()  # type: ignore[arg-type]
    return {key: value for key, value in values.items() if key in keys}  # not Kubernetes's


def _read(file: Path, *, again: bool) -> dict[str, object]:
    try:
        if again and not stat.S_ISREG(file.stat().st_mode):  # of a pipe nothing more comes, or what has no end
            raise ConfigError(f"{file}: the configuration file is no regular file, and is not read again")
        text = file.read_text(encoding="utf-8")
        if again and not text:  # as it is while it is written
            raise ConfigError(f"{file}: the configuration file is empty; a comment alone is a file without settings")
        return parse_toml(text)
    except OSError as error:
        raise ConfigError(f"{file}: the configuration file can't be read: {error.strerror}") from error
    except ValueError as error:  # malformed TOML, or not UTF-8
        raise ConfigError(f"{file}: the configuration file is not TOML: {error}") from error


def _variables() -> tuple[set[str], list[str]]:
    """Return the settings for which the environment has a value, and an error for each variable that is no setting."""
    keys: set[str] = set()
    errors: list[str] = []
    for name, value in os.environ.items():
        if not name.lower().startswith(ENV_PREFIX.lower()) or _is_no_setting(name, value):
            continue
        key = name.lower().removeprefix(ENV_PREFIX.lower())
        if key not in Settings.model_fields:  # pydantic-settings would ignore it silently
            errors.append(f"unknown environment variable {name}" + _did_you_mean(key, variable))
        elif value:  # an empty variable counts as none
            keys.add(key)
    return keys, errors


def _is_no_setting(name: str, value: str) -> bool:
    """Whether a variable that begins as ours do is for a client, or is Kubernetes's."""
    return name in {TOKEN, PAGE_TOKEN, SERVERS} or _OF_A_SERVICE.match(f"{name}={value}") is not None


def bare_environment() -> dict[str, str]:
    """Return the environment for a process of ours that is given everything it has to know by flags.

    The settings are left out, because some without the others may contradict each other, and so are the variables with
    which systemd addresses the server.
    """
    ours = (ENV_PREFIX, "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}


def _did_you_mean(key: str, spelt: Callable[[str], str]) -> str:
    close = get_close_matches(key, Settings.model_fields, n=1, cutoff=0.7)
    return f"; did you mean {spelt(close[0])}?" if close else ""
