"""The processes that the server runs beside itself: scheduled backups, and the page in the browser."""

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from beanlite.errors import ConfigError
from beanlite.host.places import as_place, reached_at
from beanlite.host.shown import page_context
from beanlite.host.users import read_users
from beanlite.settings.config import Settings
from beanlite.settings.defaults import DATABASE, PAGE_TOKEN

if TYPE_CHECKING:
    from beanlite.beside.backups import Backups
    from beanlite.beside.webpage import WebPage


# The settings with the files that the page reads at its start.
_PAGE_FILES: Final = ("web_tls_cert", "web_tls_key", "web_password_file")


class Beside:
    """Starts these processes with the server, and ends them with it. Code that is not needed is not even imported."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        """``sockets``: those on which the server listens."""
        self._sockets = sockets
        self.page_token = secrets.token_hex(32)
        """By this the server knows its page, if rules say what clients may do."""
        self.backups: Backups | None = None
        """None: no backups are made."""
        self._page: WebPage | None = None

    async def back_up(self, settings: Settings) -> None:
        """Make backups as these settings ask for, from now on."""
        before = self.backups
        if before is not None:
            before.end()
            await before.wait()
        self.backups = _backups(settings)
        if self.backups is not None:
            if before is not None:
                self.backups.succeeded_at, self.backups.failed_at = before.succeeded_at, before.failed_at
            self.backups.begin()
        self.change_page(settings)

    def show(self, settings: Settings) -> None:
        """Have the page served, if the settings ask for it; to be called when the server serves."""
        if settings.web is None:
            return
        from beanlite.beside.webpage import WebPage  # noqa: PLC0415 - the start is faster without it

        self._page = WebPage(asyncio.get_running_loop(), self._page_command(settings), self._secrets_of(settings))
        self._page.begin()

    def change_page(self, settings: Settings) -> None:
        """Have the page served as these settings ask for, and with the files that are there now."""
        if self._page is not None:
            self._page.change(self._page_command(settings), self._secrets_of(settings))

    def _secrets_of(self, settings: Settings) -> dict[str, str]:
        """Return the token of the page, if it needs one, and the URL of the database, if there is one."""
        secrets = {} if settings.access is None else {PAGE_TOKEN: self.page_token}
        if settings.database is not None:
            secrets[DATABASE] = settings.database.get_secret_value()
        return secrets

    def _page_command(self, settings: Settings) -> list[str]:
        from beanlite.beside.webpage import page_command  # noqa: PLC0415 - as above

        assert settings.web is not None
        options = {"server": _reached_at(self._sockets), "listen": settings.web}
        if settings.file is not None:
            options["db"] = os.path.realpath(settings.file)
        if settings.backup_dir is not None:
            options["backups"] = str(settings.backup_dir.absolute())  # to follow links there may hang
        files = {key: path for key in _PAGE_FILES if (path := getattr(settings, key)) is not None}
        options |= {key: str(path.absolute()) for key, path in files.items()}
        options["written"] = " ".join(map(_written, files.values()))  # another one has it begin anew
        return page_command(options)

    def end(self) -> None:
        """Have these processes end."""
        for each in (self._page, self.backups):
            if each is not None:
                each.end()

    async def wait(self) -> None:
        """Wait until none of them reads the database any more; to be called after ``end``."""
        for each in (self._page, self.backups):
            if each is not None:
                await each.wait()


def _written(path: Path) -> str:
    """Return which file it is, and when it was changed, as text; empty if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ""
    return f"{stat.st_ino}:{stat.st_ctime_ns}"  # unlike its other times, a copy can't keep this one


def check_page(settings: Settings, sockets: Sequence[socket.socket]) -> None:
    """Raise ConfigError if the page is asked for and can't be served."""
    if settings.web is not None:
        _reached_at(sockets)
        check_page_files(settings)


def check_page_files(settings: Settings) -> None:
    """Raise ConfigError if the page can't read its users or show its certificate."""
    if settings.web_password_file is not None:
        try:
            read_users(settings.web_password_file)
        except ConfigError as error:
            raise ConfigError(f"web_password_file: {error}") from error
    if settings.web_tls_cert is not None and settings.web_tls_key is not None:
        files = str(settings.web_tls_cert), str(settings.web_tls_key)
        page_context(*files, ("web_tls_cert", "web_tls_key"))


def _backups(settings: Settings) -> "Backups | None":
    if settings.backup_every_s is None or settings.backup_dir is None:
        return None
    from beanlite.beside.backups import Backups  # noqa: PLC0415 - as above

    loop = asyncio.get_running_loop()
    return Backups(loop, settings.db, settings.backup_dir, settings.backup_every_s, settings.backup_keep)


def _reached_at(sockets: Sequence[socket.socket]) -> str:
    """Return where a client of this machine reaches a server: HOST:PORT or unix:PATH. ConfigError: it can't."""
    for sock in sockets:
        name = sock.getsockname()
        if sock.family != socket.AF_UNIX:
            return as_place(reached_at(name[0]), name[1])
        if isinstance(name, str) and name:  # the name of an abstract socket is in bytes
            return f"unix:{os.path.realpath(name)}"
    raise ConfigError("web: the page can't reach the server at an abstract socket alone")
