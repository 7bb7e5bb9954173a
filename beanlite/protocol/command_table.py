"""The table of all commands."""

from __future__ import annotations

from beanlite.protocol import arguments, commands, offers, replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.batches import reserve_batch
from beanlite.protocol.blocked import WORKING
from beanlite.protocol.noting import new_note_command
from beanlite.protocol.session import Command, Session, at_leisure

# The three commands that every job needs have classes, in which the calls of ``Command.give`` are written out: when
# compiled, these are direct.


class PutCommand(Command):
    """The command put. It remembers the last line, since a producer's puts are mostly alike."""

    __slots__ = ("_args", "_line")

    def __init__(self) -> None:
        super().__init__(b"put", arguments.parse_put, commands.put)
        self._args = b""
        self._line: Put | None = None

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:
        """As for any command."""
        line = self._line if args == self._args else arguments.parse_put(args)
        if line is None:
            return replies.BAD_FORMAT
        self._args, self._line = args, line
        self.count += 1
        return commands.put(session, line, now_ns)


class ReserveCommand(Command):
    """The command reserve."""

    __slots__ = ()

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:
        """As for any command."""
        self.count += 1
        return commands.reserve(session, args, now_ns)


class DeleteCommand(Command):
    """The command delete."""

    __slots__ = ()

    def give(self, session: Session, args: bytes, now_ns: int) -> bytes | None:
        """As for any command."""
        job_id = arguments.parse_id(args)
        if job_id is None:
            return replies.BAD_FORMAT
        self.count += 1
        return commands.delete(session, job_id, now_ns)


def new_commands() -> list[Command]:
    """All commands, with counts of 0, in the order of the statistics.

    ``quit`` is not among them: any line that begins with that word is a quit.
    """
    return [
        PutCommand(),
        Command(b"peek", arguments.parse_id, commands.peek),
        Command(b"peek-ready", None, commands.peek_ready),
        Command(b"peek-delayed", None, commands.peek_delayed),
        Command(b"peek-buried", None, commands.peek_buried),
        ReserveCommand(b"reserve", None, commands.reserve),
        Command(b"reserve-with-timeout", arguments.parse_timeout, commands.reserve_with_timeout),
        Command(b"reserve-batch", arguments.parse_batch, at_leisure(reserve_batch, WORKING), in_stats=False),
        Command(b"reserve-job", arguments.parse_id, commands.reserve_job, in_stats=False),
        DeleteCommand(b"delete", arguments.parse_id, commands.delete),
        Command(b"release", arguments.parse_release, commands.release),
        Command(b"use", arguments.parse_name, commands.use),
        Command(b"watch", arguments.parse_name, commands.watch),
        Command(b"ignore", arguments.parse_name, commands.ignore),
        Command(b"bury", arguments.parse_bury, commands.bury),
        Command(b"kick", arguments.parse_kick, commands.kick),
        Command(b"kick-job", arguments.parse_id, commands.kick_job, in_stats=False),
        Command(b"touch", arguments.parse_id, commands.touch),
        Command(b"stats", None, at_leisure(commands.stats)),
        Command(b"stats-job", arguments.parse_id, at_leisure(commands.stats_job)),
        Command(b"stats-tube", arguments.parse_name, at_leisure(commands.stats_tube)),
        Command(b"list-tubes", None, at_leisure(commands.list_tubes)),
        Command(b"list-tube-used", None, commands.list_tube_used),
        Command(b"list-tubes-watched", None, at_leisure(commands.list_tubes_watched)),
        Command(b"pause-tube", arguments.parse_pause, commands.pause_tube),
        new_note_command(),
        Command(b"offer", arguments.parse_timeout, offers.offer, in_stats=False),
        Command(b"take", arguments.parse_id, offers.take, in_stats=False),
        Command(b"decline", arguments.parse_id, offers.decline, in_stats=False),
        Command(b"name", arguments.parse_claim, commands.name, in_stats=False),
    ]
