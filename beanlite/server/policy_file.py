"""The file of policies, in TOML: a table for each pattern, such as ``["mail.*"]``, with its keys and their values."""

from pathlib import Path

from beanlite.core.policies import text_of_value
from beanlite.core.policy_changes import changes_of
from beanlite.errors import ConfigError
from beanlite.settings.toml_file import read_toml

Values = dict[tuple[bytes, str], str]


def read_policies(file: Path) -> Values:
    """Return the values by pattern and key. ConfigError: the file can't be read, or something in it is wrong."""
    values, errors = _examine(file)
    if errors:
        raise ConfigError(errors[0])
    return values


def mistakes_in(file: Path) -> list[str]:
    """Return everything that is wrong with the file, one line for each mistake."""
    return _examine(file)[1]


def _examine(file: Path) -> tuple[Values, list[str]]:
    """Return the values that are right, and all mistakes."""
    try:
        tables = read_toml(file, "policies")
        is_empty = not tables and not file.read_bytes().strip()
    except (ConfigError, OSError) as error:  # it may be gone by now
        return {}, [str(error)]
    if is_empty:  # as it is while it is written
        return {}, [f"{file}: the file of policies is empty; a comment alone is a file without policies"]
    values: Values = {}
    errors: list[str] = []
    for pattern, table in tables.items():
        if not isinstance(table, dict):
            errors.append(f'{file}: {pattern} is not in a table, such as ["mail.*"]')
            continue
        for key, value in table.items():
            try:
                if isinstance(value, dict):
                    raise ValueError(f'a name with a dot needs quotes, as in ["{pattern}.{key}"]')  # noqa: TRY004, TRY301 - as below
                one: Values = {(pattern.encode(), key): text_of_value(value)}
                changes_of({}, one)
            except ValueError as why:
                errors.append(f"{file}: [{pattern}] {key}: {str(why).removeprefix(f'{key}: ')}")
            else:
                values |= one
    try:
        changes_of({}, values)
    except ValueError as why:  # they are too many
        errors.append(f"{file}: {why}")
    return values, errors
