"""``beanlite config``."""

import json
import stat
from pathlib import Path
from typing import Annotated, Any

import typer

from beanlite.cli.options import AsJson
from beanlite.cli.serve import flags_of, options_of_serve, signature_with
from beanlite.errors import ConfigError
from beanlite.host.stderr import last_words
from beanlite.settings.config import Settings
from beanlite.settings.sources import examine

EPILOG = "Exit codes: 0 the settings are right; 2 a setting or flag is wrong."
EXAMPLES = """
beanlite config --config /etc/beanlite/beanlite.toml
beanlite config -p 11301 --json
beanlite config --config beanlite.toml --check
"""

# Some take them for those of the server that runs.
_NOT_ITS_OWN = (
    "These are the settings of a server that is started here with these flags; one that runs may have others."
)


def config(*, config_file: Path | None = None, check: bool = False, as_json: bool = False, **options: Any) -> int:  # noqa: ANN401 - the options of serve
    """Print the settings, and where each comes from.

    These are the settings that "beanlite serve" would use with the same flags. Each comes from its default, the TOML
    file, an environment variable or a flag.
    """
    flags = flags_of(options, lambda warning: last_words(f"beanlite: {warning}"))
    settings, errors, origins = examine(config_file, flags)
    if check:
        if settings is not None and not errors:
            errors = _mistakes_in_user(settings) + _missing_folder(settings) + _mistakes_in_files(settings)
        for mistake in errors:
            last_words(f"beanlite: {mistake}")
        return ConfigError.exit_code if errors else 0
    if errors:
        raise ConfigError(errors[0])
    rows = [(key, getattr(settings, key), source) for key, source in origins.items()]
    if as_json:
        print(json.dumps({key: {"value": value, "source": source} for key, value, source in rows}, default=str))
        return 0
    lines = [(key, "-" if value is None else json.dumps(value, default=str), source) for key, value, source in rows]
    widths = [max(len(row[column]) for row in lines) for column in (0, 1)]
    for key, value, source in lines:
        print(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}")
    last_words(_NOT_ITS_OWN)
    return 0


def _mistakes_in_user(settings: Settings) -> list[str]:
    """Return that there is no such user, if so."""
    from beanlite.net.listener import entry_of

    try:
        if settings.user is not None:
            entry_of(settings.user)
    except ConfigError as error:
        return [str(error)]
    return []


def _missing_folder(settings: Settings) -> list[str]:
    """Return that there is no folder for backups, if that is certain: the server may be started in another one."""
    folder = settings.backup_dir
    if folder is None or not folder.is_absolute():
        return []
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = False
    except OSError:  # it is not ours to see
        is_folder = True
    return [] if is_folder else [f"backup_dir: there is no folder {folder}"]


def _mistakes_in_files(settings: Settings) -> list[str]:
    """Return what is wrong in the files that the settings name, after saying what is only odd."""
    from beanlite.beside.beside import check_page_files
    from beanlite.server import access_file, policy_file

    errors: list[str] = []
    if settings.policies is not None:
        errors += policy_file.mistakes_in(settings.policies)
    if settings.access is not None:
        owners = access_file.owners_for(settings)
        mistakes_of_access = access_file.mistakes_in(settings.access, owners)
        errors += mistakes_of_access
        if not mistakes_of_access:
            rules = access_file.read_access(settings.access, serves=False)
            oddities = [access_file.page_oddity(settings, rules)]
            if owners is None:
                oddities.append(access_file.owner_oddity(settings.access))
            for oddity in filter(None, oddities):
                last_words(f"beanlite: {settings.access}: {oddity}")
    try:
        check_page_files(settings)
    except ConfigError as error:
        errors.append(str(error))
    if settings.tls is not None:
        from beanlite.net.certificates import expiries, load_certificates

        try:
            certificates = load_certificates(settings)
        except ConfigError as error:
            return [*errors, str(error)]
        expired, others = expiries(certificates)
        errors += expired
        for line in others:
            last_words(f"beanlite: {line}")
    return errors


_OWN = {
    "check": Annotated[bool, typer.Option("--check", help="Only print mistakes, one per line, on stderr.")],
    "as_json": AsJson,
}
config.__signature__ = signature_with(  # type: ignore[attr-defined]
    {name: option for name, option in options_of_serve().items() if name != "version"} | _OWN
)
