"""Settings that are changed while the server serves: which of them take effect, and what is logged."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from beanlite.beside.beside import Beside, check_page_files
from beanlite.errors import BeanliteError
from beanlite.host import log, systemd
from beanlite.net.allowed import Access
from beanlite.net.certificates import Certificates, load_certificates
from beanlite.net.handshakes import most_pending
from beanlite.net.listener import room_for
from beanlite.net.operators import Operators
from beanlite.server import policies
from beanlite.server.access_file import read_access, warn_of_page
from beanlite.server.policy_file import Values, read_policies
from beanlite.server.wiring import Parts, set_bounds
from beanlite.settings.config import RELOADED, Settings

APPLIED: Final = [key for key, field in Settings.model_fields.items() if RELOADED in field.metadata]
_BOUNDS: Final = [key for key in APPLIED if key.startswith("max_") or key == "body_memory"]
_BACKUPS: Final = [key for key in APPLIED if key.startswith("backup_")]
# What a reload can't change, and the beginning of the settings that go with it: these stay, too, if it is to change.
_FIXED: Final = (("tls", "tls_"), ("web", "web_"), ("file", "backup_"))

_Result = TypeVar("_Result")


async def reload(
    before: Settings, load: Callable[[], Settings], parts: Parts, beside: Beside, now: Callable[[], int]
) -> Settings:
    """Read the settings and their files again, apply what can be changed now, and return what is in effect.

    If anything is wrong with them, nothing changes, and the reason is logged. ``now`` reads the clock of the turns.
    """
    systemd.reloading()
    try:
        target = await _beside_the_loop(load)
        settings = _merge(before, target, len(parts.roster))
        files = await _beside_the_loop(lambda: _read_files(settings, encrypts=parts.handshakes is not None))
    except BeanliteError as error:
        log.error("not reloaded: settings unchanged", error=error)
        settings = before
    else:
        if parts.handshakes is not None and files.certificates is not None:
            parts.handshakes.renew(files.certificates)
        await _apply(before, settings, files.access, parts, beside)
        warn_of_page(settings, files.access)
        policies.apply(settings.policies, files.policies, parts.service, now())
        _tell(before, target, settings)
    systemd.tell("READY=1")
    return settings


async def _beside_the_loop(read: Callable[[], _Result]) -> _Result:
    """Read in a thread, while clients are served: a directory of users, a disk or many authorities may take seconds."""
    try:
        return await asyncio.to_thread(read)
    except RuntimeError as error:  # the system has no more threads for us
        raise BeanliteError(str(error)) from error


class _Reading(NamedTuple):
    """What is in the files that the settings name."""

    policies: Values | None
    access: Access | None
    certificates: Certificates | None


def _read_files(settings: Settings, *, encrypts: bool) -> _Reading:
    """Read all files, also those that others read in their turn. BeanliteError: one is wrong."""
    check_page_files(settings)
    return _Reading(
        None if settings.policies is None else read_policies(settings.policies),
        None if settings.access is None else read_access(settings.access),
        load_certificates(settings) if encrypts else None,
    )


def _merge(before: Settings, target: Settings, connections: int) -> Settings:
    """Return the target as far as it can take effect now, and else what was before. ConfigError: that fails."""
    if before.journal and target.max_job_size != before.max_job_size:
        from beanlite.journal.sqlite.file.database import check_body_size  # noqa: PLC0415 - not with --no-journal

        check_body_size(target.max_job_size)
    new = {key: getattr(target, key) for key in APPLIED}
    for what, prefix in _FIXED:
        if getattr(target, what) != getattr(before, what):
            new |= {key: getattr(before, key) for key in APPLIED if key.startswith(prefix)}
    if target.max_connections != before.max_connections:
        new["max_connections"] = room_for(
            target.max_connections, connections, None if before.tls is None else most_pending
        )
    return before.model_copy(update=new)


async def _apply(before: Settings, now: Settings, access: Access | None, parts: Parts, beside: Beside) -> None:
    log.setup(now.log_level, now.log_format)
    parts.service.max_job_size = now.max_job_size
    if _differ(before, now, _BOUNDS):
        set_bounds(now, parts.engine, parts.refusals, parts.memory_limit, fetches=parts.journal.fetches)
    parts.addresses.limit(now.connections_per_address, spare_local=now.max_connections_per_address is None)
    if now.journal:
        if now.history is not None and before.history is None:
            parts.engine.ledger.start_recording()
        if now.history is None and before.history is not None:
            parts.engine.ledger.stop_recording()
        parts.engine.ledger.keeps_bodies = now.history_bodies
        parts.journal.reconfigure(now.history_s, now.history_bytes, history_bodies=now.history_bodies)
    most = most_pending(now.max_connections)
    if parts.handshakes is not None:
        parts.handshakes.limit(most)
    await parts.roster.change(now.max_connections, most, Operators(now.operators), access)
    beside.change_page(now)
    if _differ(before, now, _BACKUPS):
        await beside.back_up(now)


def _differ(one: Settings, other: Settings, keys: list[str]) -> bool:
    return any(getattr(one, key) != getattr(other, key) for key in keys)


def _tell(before: Settings, target: Settings, now: Settings) -> None:
    """Log which settings have changed, and which need a restart."""
    for key in type(target).model_fields:
        was, is_now, goal = (getattr(settings, key) for settings in (before, now, target))
        if was != is_now:
            log.info("setting changed", setting=key, was=was, now=is_now)
        if is_now != goal and key == "max_connections":
            log.warning("the limit of open files allows fewer connections", max_connections=goal, room=is_now)
        elif is_now != goal:
            log.warning("setting needs a restart", setting=key, now=is_now, then=goal)
    log.info("reloaded")


class Reloads:
    """Reloads the settings whenever that is requested, one reload after the other."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        self._settings = settings
        self._load = load
        self._wanted = asyncio.Event()

    def want(self, *, stands_by: bool) -> None:
        """Request a reload as soon as the server serves; with ``stands_by``, that is when it becomes active."""
        self._wanted.set()
        if stands_by:
            systemd.reloading()  # systemd waits for this, and for READY
            log.info("reload postponed until this server is active")
            systemd.tell("READY=1")

    async def serve(
        self, parts: Parts, beside: Beside, now: Callable[[], int], tell_failure: Callable[[Exception], None]
    ) -> None:
        """Serve requests for reloads until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._settings = await reload(self._settings, self._load, parts, beside, now)
            except Exception as bug:  # noqa: BLE001 - nothing else would report it
                tell_failure(bug)
