"""Every setting: its default, its unit, its check, its flag, and what is said about it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, SecretStr, StringConstraints

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
    ListenAt,
    Place,
    Whole,
    is_loopback,
    of_fsync,
    of_operators,
    seconds,
)


@dataclass(frozen=True)
class Flag:
    """The flag of a setting: ``--port PORT`` for ``port``."""

    metavar: str  # the value in --help; if empty, the flag takes none, and sets true
    short: str | None = None
    more: str = ""  # what --help says beyond the description


# Marks a setting that can change between two turns of the loop. All others need a restart.
RELOADED: Final = "reloaded"


class Settings(BaseModel):
    """The settings of a server; ``--help`` and errors print their descriptions.

    The text below a setting is what config.example.toml and docs/reference.md say about it, with {} for its
    description; if there is no text, they have the description alone. The example file has the setting's default or, if
    that is None, the value in `examples`. ``python -m tests.reference_files`` writes both files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Annotated[str, Flag("ADDR", "-l", "; unix:PATH is the same as --socket PATH")] = Field(
        HOST, min_length=1, description="address or host name to listen on"
    )
    """The {}. 0.0.0.0 accepts connections from everywhere, and :: also those over IPv6; the protocol has no
    passwords."""
    port: Annotated[Whole, Flag("PORT", "-p", "; without effect beside -l unix:PATH")] = Field(
        PORT, ge=0, le=65535, description="TCP port to listen on, 0 to 65535; 0 picks any free port"
    )
    """The {}, and the log says which."""
    socket: Annotated[GivenPath | None, Flag("PATH")] = Field(
        None,
        description="path of a Unix socket to listen on, instead of host and port",
        examples=["/run/beanlite/queue.sock"],
    )
    """The {}; the flags --host and --port override it."""
    tls: Annotated[ListenAt | None, Flag("ADDR")] = Field(
        None,
        description="address and port, such as 0.0.0.0:11301, at which clients that use TLS are served as well; needs"
        " tls_cert and tls_key",
        examples=["0.0.0.0:11301"],
    )
    """The {}. The listener is opened by the server itself, also where systemd passes sockets for other clients."""
    tls_cert: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="PEM file with the certificate for tls, followed by those of intermediate authorities",
        examples=["/etc/beanlite/server.crt"],
    )
    tls_key: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="PEM file with the private key of that certificate, which nobody else may read (mode 600); without"
        " a password",
        examples=["/etc/beanlite/server.key"],
    )
    tls_clients: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="PEM file with the authorities of clients' certificates; if set, clients without such a"
        " certificate are refused",
        examples=["/etc/beanlite/clients.crt"],
    )
    tls_min: Annotated[Literal["1.2", "1.3"], Flag("VERSION"), RELOADED] = Field(
        "1.3", description="lowest version of TLS that clients may use: 1.2 or 1.3"
    )
    """The {}. With 1.2, a client of that version has to take session tickets, as OpenSSL does by default."""
    db: Annotated[DbPath, Flag("PATH", "-b")] = Field(
        Path(DB_NAME), description=f"path of the database file; if it is a directory, the file {DB_NAME} in it"
    )
    """The {}. A relative path starts from where the server, or a command with --config, was started."""
    database: Annotated[SecretStr | None, Flag("URL")] = Field(
        None,
        description="URL of a PostgreSQL database, such as postgresql://beanlite@db1,db2/queue, to keep jobs in instead"
        " of a file; a second server with the same database stands by",
        examples=["postgresql://beanlite@db1,db2/queue"],
    )
    """The {}, and takes over when the first is lost. docs/postgresql.md lists the requirements. Default: none. To keep
    a password out of the settings file, use the environment (BEANLITE_DATABASE) or ~/.pgpass; all users of the machine
    see one in --database in the list of processes."""
    require_sync: Annotated[bool, Flag("YES")] = Field(
        default=True,
        description="whether a PostgreSQL database without a synchronous standby is refused (true) or accepted (false)",
    )
    """{}. Changes acknowledged with such a database are lost with its machine, unless its disk is replicated by other
    means."""
    lease: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,2}s$"), Flag("TIME")] = Field(
        "3s",
        description="how long the active server must be silent before a standby server takes over, 1s to 999s; the"
        " same on both",
    )
    node: Annotated[str | None, Flag("NAME")] = Field(
        None,
        min_length=1,
        description="name of this server in the database and in the logs of other servers; if unset, host and address",
        examples=["queue1"],
    )
    standby: Annotated[Literal["refuse", "forward"], Flag("WHAT")] = Field(
        "refuse",
        description="what a standby server does with clients: refuse them, which shows that it is not the active one,"
        " or forward them to the active one",
    )
    """{}. docs/postgresql.md says when to use which."""
    advertise: Annotated[Place | None, Flag("ADDR")] = Field(
        None,
        description="host and port, such as 10.0.0.5:11300, at which a standby server reaches this one; if unset, the"
        " address that this one listens on",
        examples=["10.0.0.5:11300"],
    )
    """The {}, or the name of the machine if it listens on all addresses. The address must lead to this server alone,
    not to a proxy."""
    fsync: Annotated[
        str, StringConstraints(pattern=r"^(always|never|[0-9]{1,9}ms)$"), AfterValidator(of_fsync), Flag("WHEN")
    ] = Field(
        "always",
        description="when commits are synced to disk: always (before their replies), never, or once per interval"
        " in milliseconds, such as 50ms",
    )
    """{}. Whichever is set, a killed server loses nothing that it has acknowledged. A power failure can lose the last
    50 ms and the time of a sync with "50ms", or of two syncs if these take longer than that, and with "never" whatever
    the operating system had not yet written."""
    journal: bool = Field(
        default=True, description="whether jobs are kept in the database (true) or in memory only (false)"
    )
    max_job_size: Annotated[Whole, Flag("BYTES", "-z"), RELOADED] = Field(
        65535, ge=1, le=MAX_JOB_SIZE_LIMIT, description=f"largest job body in bytes, 1 to {MAX_JOB_SIZE_LIMIT}"
    )
    """The {}. A put of a larger one is answered JOB_TOO_BIG. While a body of more than 8 MiB is written, other clients
    may wait more than 0.1 s for a reply; if the limit is above that, the server logs a warning at the start."""
    max_connections: Annotated[Whole, Flag("N"), RELOADED] = Field(
        10000, ge=1, description="maximum number of connections, 1 or more; further ones are closed at once"
    )
    """The {}. The soft limit on open files is raised to what they need; if the hard limit (ulimit -Hn) is too low, the
    log says how many connections it allows."""
    max_connections_per_address: Annotated[
        Whole | None,
        Flag("N", more="; by default all but a tenth of --max-connections, and any number from this machine"),
        RELOADED,
    ] = Field(
        None,
        ge=1,
        description="maximum number of connections from one address, 1 or more; further ones are closed at once",
        examples=[9000],
    )
    """The {}. With IPv6 a /64 network counts as one address, since a client can use any address in its network.
    Connections over a Unix socket are not counted. Default: none, which means all but a tenth of max_connections, so
    that one host can't take them all, but any number of connections from this machine itself (127.0.0.1, ::1), since
    these may be the only ones. A number that is set here applies to this machine as well."""
    max_watched: Annotated[Whole, Flag("N"), RELOADED] = Field(
        1000, ge=1, description="maximum number of tubes that a client may watch, 1 or more; further ones are refused"
    )
    """The {}: the watch is answered OUT_OF_MEMORY. Each reserve looks at all tubes that its client watches."""
    max_tubes: Annotated[Whole, Flag("N"), RELOADED] = Field(
        200_000, ge=1, description="maximum number of tubes, 1 or more; clients can't create further ones"
    )
    """The {}: the use or watch is answered OUT_OF_MEMORY. Tubes that a start reads from the database are never
    refused."""
    max_memory: Annotated[
        ByteSize | None, Flag("BYTES", more="; by default four fifths of what is available"), RELOADED
    ] = Field(
        None,
        ge=MEMORY_LEAST,
        description="memory for jobs and everything else that grows with use, in bytes or as 512MiB, at least 16MiB;"
        " when it is used up, puts are answered OUT_OF_MEMORY",
        examples=["512MiB"],
    )
    """{} until there is room again, and everything else works as before. An empty server takes some 40 MiB on top of
    this. Default: none, which means four fifths of what the machine, its cgroup and ulimit leave; the log says how
    much."""
    body_memory: Annotated[
        ByteSize | None, Flag("BYTES", more="; by default as much as max_memory leaves"), RELOADED
    ] = Field(
        None,
        ge=MEMORY_LEAST,
        description="how much of max_memory job bodies may take, in bytes or as 512MiB, at least 16MiB; other bodies"
        " stay in the database until they are needed",
        examples=["256MiB"],
    )
    """{}. A backlog may thus be much larger than memory. Default: none, which means as much as max_memory leaves."""
    backup_every: Annotated[Duration | None, Flag("TIME"), RELOADED] = Field(
        None,
        description="time from one backup to the next, such as 30m, 24h or 7d; if unset, none are made",
        examples=["24h"],
    )
    """The {}. Each backup is a separate file, named after the database and the time (UTC)."""
    backup_dir: Annotated[GivenPath | None, Flag("FOLDER"), RELOADED] = Field(
        None, description="folder for these backups; it must exist", examples=["/var/backups/beanlite"]
    )
    backup_keep: Annotated[Whole, Flag("N"), RELOADED] = Field(
        7, ge=1, description="number of these backups to keep, 1 or more"
    )
    """The {}; once a new one is complete, the oldest are deleted."""
    history: Annotated[Duration | None, Flag("TIME"), RELOADED] = Field(
        None,
        description="how long the database keeps a record of what happened to each job, such as 12h or 7d; if unset,"
        " only what operators do is recorded",
        examples=["7d"],
    )
    """{}, and kept for 400 days. Each event takes about 60 bytes."""
    history_bytes: Annotated[ByteSize, Flag("BYTES"), RELOADED] = Field(
        ByteSize(1 << 30),
        ge=HISTORY_LEAST,
        description="maximum size of the history, in bytes or as 512MiB, at least 1MiB; the oldest events go first",
    )
    history_bodies: Annotated[bool, Flag(""), RELOADED] = Field(
        default=False, description="whether the history includes the bodies of deleted jobs"
    )
    operators: Annotated[str, AfterValidator(of_operators), Flag("LIST"), RELOADED] = Field(
        "unix, 127.0.0.0/8, ::1",
        description="addresses and networks from which operators' commands are accepted, separated by commas, with"
        " unix for the Unix socket; or none",
    )
    """{}. These commands can see and change all jobs (docs/protocol.md). If a proxy runs on this machine, all of its
    clients come from 127.0.0.1: leave that address out."""
    policies: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="TOML file with the policies of tubes; if unset, operators set them",
        examples=["/etc/beanlite/policies.toml"],
    )
    """The {}. It is read when the server becomes active and at SIGHUP, and the policies are then those of the file and
    no others (docs/policies.md)."""
    access: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="TOML file with who may do what with which tubes; if unset, everybody may everything, and operators"
        " their commands",
        examples=["/etc/beanlite/access.toml"],
    )
    """The {}. With it the setting operators has no effect, and nobody may do what no rule in the file allows. It is
    read at the start and at SIGHUP, which ends the connections that have lost rights (docs/access.md)."""
    health: Annotated[ListenAt | None, Flag("ADDR")] = Field(
        None,
        description="address and port, such as 127.0.0.1:11381, at which /healthz, /readyz and /metrics are served;"
        " if unset, they are not",
        examples=["127.0.0.1:11381"],
    )
    """The {}. There is no authentication, so choose an address that only people and programs that may know the names of
    tubes can reach."""
    metrics_tubes: Annotated[Whole, Flag("N")] = Field(
        1000,
        ge=0,
        le=10_000,
        description="number of tubes that have metrics of their own, 0 to 10000; the rest are summed",
    )
    """The {}. The tubes created first have them."""
    web: Annotated[ListenAt | None, Flag("ADDR")] = Field(
        None,
        description="address and port, such as 127.0.0.1:11380, at which the page in the browser is served; if unset,"
        " it is not",
        examples=["127.0.0.1:11380"],
    )
    """The {}. It is served by a separate process beside the server. An address that other machines can reach needs
    web_password_file; without that everybody on this machine may use the page, and with access it may do what the rules
    give to page (docs/web.md)."""
    web_password_file: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="file of the users who may log in at the page, with lines printed by `beanlite web --add-user`; if"
        " unset, it asks nobody for a password",
        examples=["/etc/beanlite/users"],
    )
    """The {}. With access each of them has the rights that the rules give to person:NAME. SIGHUP reads the file
    again."""
    web_tls_cert: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="PEM file with the certificate of the page in the browser, and with those that vouch for it; if"
        " unset, the page does not encrypt",
        examples=["/etc/beanlite/page.pem"],
    )
    """The {}. SIGHUP has a renewed certificate served."""
    web_tls_key: Annotated[GivenPath | None, Flag("FILE"), RELOADED] = Field(
        None,
        description="PEM file with the key of web_tls_cert, which nobody else may read (mode 600); without a password",
        examples=["/etc/beanlite/page.key"],
    )
    user: Annotated[str | None, Flag("USER", "-u")] = Field(
        None,
        pattern=r"^[^\x00]+$",
        description="user to become, with its groups, once the sockets are bound",
        examples=["beanlite"],
    )
    """The {}. Default: none, which keeps the user that started the server."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Flag("LEVEL"), RELOADED] = Field(
        "info", description="lowest level that is logged: debug, info, warning or error"
    )
    log_format: Annotated[Literal["text", "json"], Flag("FORM"), RELOADED] = Field(
        "text", description="format of the log: text, or json for one object per line"
    )

    @property
    def file(self) -> Path | None:
        """The database file; None if jobs are in memory only, or in PostgreSQL."""
        return self.db if self.journal and self.database is None else None

    @property
    def is_page_open(self) -> bool:
        """Whether other machines can reach the page, and it asks nobody for a password."""
        host = "localhost" if self.web is None else host_and_port(self.web)[0]
        return self.web_password_file is None and not is_loopback(host)

    @property
    def lease_s(self) -> int:
        """The setting ``lease`` in seconds."""
        return int(self.lease.removesuffix("s"))

    @property
    def connections_per_address(self) -> int:
        """How many connections from one address are served at a time."""
        limit = self.max_connections_per_address
        return self.max_connections - self.max_connections // 10 if limit is None else limit

    @property
    def backup_every_s(self) -> int | None:
        """Seconds from one backup to the next; None if none are made."""
        return seconds(self.backup_every)

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


def flag(key: str) -> str:
    """Return the long flag of a setting."""
    return "--no-journal" if key == "journal" else "--" + key.replace("_", "-")


def variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + key.upper()
