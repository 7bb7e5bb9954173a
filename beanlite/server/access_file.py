"""The file of who may do what, in TOML: a table ``[[allow]]`` for each rule, and ``[tokens]``."""

from __future__ import annotations

import grp
import os
import pwd
import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Final

from beanlite.core.access import ROLES
from beanlite.core.policies import is_pattern
from beanlite.core.tube import is_person
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.net.allowed import Access, Rule
from beanlite.net.identities import CERT, GID, PAGE, PERSON, TOKEN, UID
from beanlite.settings.config import Settings
from beanlite.settings.toml_file import read_toml

NET: Final = "net:"
_KINDS: Final = (CERT, UID, GID, TOKEN, PERSON)
TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CERT_NAME: Final = re.compile(r"[!-~]{1,200}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SECRET: Final = re.compile(r"[0-9A-Fa-f]{32,}")
_KEYS: Final = ("who", "role", "tubes")
_OTHERS_WRITE: Final = 0o022
# What is odd with the rules for the page that the settings have served.
PAGE_UNNAMED: Final = "the page may do nothing: no rule names page"
PAGE_LIMITED: Final = "nobody who logs in at the page may do anything: page is not operator on all tubes"


def read_access(file: Path, *, serves: bool = True) -> Access:
    """Return the rules of the file. ConfigError: it can't be read, or something in it is wrong.

    ``serves``: the server reads it, so it has to belong to the user of this process, or to root.
    """
    reader = _RulesReader(file, {0, os.geteuid()} if serves else None)
    if reader.errors:
        raise ConfigError(reader.errors[0])
    return Access(reader.rules, reader.digests, reader.spelt)


def mistakes_in(file: Path, owners: set[int] | None = None) -> list[str]:
    """Return everything that is wrong with the file, one line for each mistake.

    ``owners``: the users to one of whom it has to belong; None: they are not known.
    """
    return _RulesReader(file, owners).errors


def owners_for(settings: Settings) -> set[int] | None:
    """Return the users to one of whom the file of a server with these settings has to belong; None: not known."""
    try:
        return None if settings.user is None else {0, pwd.getpwnam(settings.user).pw_uid}
    except KeyError:  # which the start and `config --check` tell by themselves
        return None


def owner_oddity(file: Path) -> str:
    """Return to which user the file belongs, if not to root or to that of this process; empty otherwise. OSError."""
    owner = file.stat().st_uid
    if owner in {0, os.geteuid()}:
        return ""
    return f"the file of access belongs to user {owner}; a server that runs as another user than that refuses it"


def page_oddity(settings: Settings, access: Access | None) -> str:
    """Return what the rules don't give to the server's own page that it needs; empty if there is nothing."""
    if settings.web is None or access is None:
        return ""
    if not any(PAGE in rule.names for rule in access.rules):
        return PAGE_UNNAMED
    rights = access.rights_of(access.matching(frozenset({PAGE}), None))
    return "" if settings.web_password_file is None or rights.everything else PAGE_LIMITED


def warn_of_page(settings: Settings, access: Access | None) -> None:
    """Log it if the rules don't give the server's own page what it needs."""
    oddity = page_oddity(settings, access)
    if oddity:
        log.warning(oddity, access=settings.access)


class _RulesReader:
    """What is in the file, as far as it is right, and all mistakes."""

    def __init__(self, file: Path, owners: set[int] | None = None) -> None:
        """``owners``: the users to one of whom the file has to belong, if that matters."""
        self._file = file
        self._owners = owners
        self.errors: list[str] = []
        self.rules: list[Rule] = []
        self.digests: dict[str, str] = {}
        self.spelt: dict[str, str] = {}
        tables = self._tables()
        for key in tables.keys() - {"allow", "tokens"}:
            self._note(key, "the file has only [[allow]] and [tokens]")
        self._read_tokens(tables.get("tokens", {}))
        rules = tables.get("allow", [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            self._note("allow", "each rule is a table [[allow]], with two brackets")
            rules = []
        for number, rule in enumerate(rules, 1):
            self._read_rule(number, rule)

    def _tables(self) -> dict[str, Any]:
        try:
            tables = read_toml(self._file, "access")
            self._check(self._file.stat())
        except (ConfigError, OSError) as error:  # it may be gone by now
            self.errors.append(str(error))
            return {}
        if not tables:  # as it is while it is written
            self.errors.append(f"{self._file}: the file of access is empty; `allow = []` is a file without rules")
        return tables

    def _check(self, facts: os.stat_result) -> None:
        """Note if the rules can be changed by others: they would give themselves every right."""
        mode = facts.st_mode & 0o777
        if mode & _OTHERS_WRITE:
            self.errors.append(f"{self._file}: others may change the file of access (mode {mode:o}); chmod go-w it")
        if self._owners is not None and facts.st_uid not in self._owners:
            why = f"belongs to user {facts.st_uid}, not to root or the server's user"
            self.errors.append(f"{self._file}: the file of access {why}; chown it")

    def _note(self, place: str, why: str) -> None:
        # What stands in a wrong place may be a token.
        self.errors.append(f"{self._file}: " + _SECRET.sub("…", f"{place}: {why}"))

    def _read_tokens(self, table: object) -> None:
        if not isinstance(table, dict):
            self._note("tokens", "tokens are in a table [tokens]")
            return
        for name, digest in table.items():
            place = f"[tokens] {name}"
            if TOKEN_NAME.fullmatch(name) is None:
                self._note(place, "a name has 1 to 64 letters, digits, dots, hyphens and underscores")
            elif not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:  # which might be a token: not told
                self._note(place, f"this is no line that `beanlite token new {name}` has printed")
            elif digest in self.digests.values():
                self._note(place, "another name has the same token")
            else:
                self.digests[name] = digest

    def _read_rule(self, number: int, rule: dict[str, Any]) -> None:
        place = f"[[allow]] number {number}"
        for key in rule.keys() - set(_KEYS):
            self._note(f"{place}: {key}", "a rule has who, role and tubes")
        lists = {key: self._list(f"{place}: {key}", rule.get(key)) for key in _KEYS}
        for role in lists["role"]:
            if role not in ROLES:
                self._note(f"{place}: role", f"{role!r} is not one of {', '.join(ROLES)}")
        for tube in lists["tubes"]:
            if not is_pattern(tube.encode()):
                self._note(f"{place}: tubes", f"{tube!r} is neither the name of a tube nor a glob")
        names: set[str] = set()
        networks: list[IPv4Network | IPv6Network] = []
        for who in lists["who"]:
            try:
                if who.startswith(NET):
                    networks.append(ip_network(who.removeprefix(NET)))
                else:
                    names.add(self._name_of(who))
            except ValueError as why:
                self._note(f"{place}: who", str(why))
        self.rules.append(
            Rule(
                number,
                tuple(lists["who"]),
                frozenset(names),
                tuple(networks),
                tuple(lists["role"]),
                tuple(tube.encode() for tube in lists["tubes"]),
            )
        )

    def _list(self, place: str, values: object) -> list[str]:
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return values
        self._note(place, "it is missing" if values is None else 'it is a list of texts, such as ["mail.*", "sms"]')
        return []

    def _name_of(self, who: str) -> str:
        """Return an identity as it is compared: users and groups as numbers. ValueError: it can't be one."""
        name = name_of(who)
        if who.startswith(TOKEN) and who.removeprefix(TOKEN) not in self.digests:
            raise ValueError(f"{who}: there is no such name in [tokens]")
        if name != who and name.startswith(UID):
            self.spelt[name] = who.removeprefix(UID)
        return name


def name_of(who: str) -> str:
    """Return an identity other than an address as it is compared. ValueError: it can't be one."""
    if who == PAGE or (who.startswith(PERSON) and is_person(who.removeprefix(PERSON))):
        return who
    if who.startswith(CERT) and _CERT_NAME.fullmatch(who.removeprefix(CERT)) is not None:
        return who
    if who.startswith(TOKEN) and TOKEN_NAME.fullmatch(who.removeprefix(TOKEN)) is not None:
        return who
    try:
        if who.startswith(UID):
            name = who.removeprefix(UID)
            return f"{UID}{int(name) if name.isascii() and name.isdigit() else pwd.getpwnam(name).pw_uid}"
        if who.startswith(GID):
            name = who.removeprefix(GID)
            return f"{GID}{int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid}"
    except KeyError:
        raise ValueError(f"{who}: this machine has no such name") from None
    kinds = ", ".join(kind + "NAME" for kind in _KINDS)
    raise ValueError(f"{who!r} is no identity such as {kinds}, {PAGE} or {NET}ADDRESS")


def identity_from(texts: list[str]) -> tuple[frozenset[str], str | None]:
    """Return identities as they are compared, and the address among them, if any. ConfigError: one can't be any."""
    names: set[str] = set()
    host: str | None = None
    for text in texts:
        try:
            if text.startswith(NET):
                host = str(ip_address(text.removeprefix(NET)))
            else:
                names.add(name_of(text))
        except ValueError as why:
            raise ConfigError(f"--as: {why}") from None
    return frozenset(names), host
