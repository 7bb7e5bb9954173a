"""A stopped file with everything in it, and random damages to it."""

import random
from contextlib import closing

from beanlite.host.clock import utc_s
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.migrations import find_migrations
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.mark import boot_id
from beanlite.journal.sqlite.file.migrations import columns_of_jobs
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE
from tests.support.journal_files import put_by_chance, unchecked
from tests.support.policies import policy, schedule

PAGE, SECTOR = 4096, 512
JOBS = 700
# Values for a column that may not hold them, as SQL.
WRONG = ("NULL", "-1", "1.5", "''", "'text'", "x''", "x'ff00'", "CAST(x'ff' AS TEXT)", "9223372036854775807")
COLUMNS = {
    "jobs": columns_of_jobs(find_migrations())[1:],
    "bodies": ["body"],
    "meta": ["batch", "last_id", "unchecked_id", "jobs"],
    "pauses": ["pause_s", "until"],
    "server": ["seen_at", "ahead_s", "boot", "offset_ns"],
    "policies": list(policy_rows.NAMES[2:]),
    "schedules": [*schedule_rows.NAMES[1:], "crc32"],
}
KEYS = {"pauses": "tube", "meta": "one", "server": "one", "policies": "key", "schedules": "name"}
# The time at which everything happens: by the machine's clock, since 2000, and since the boot.
NOW_NS, SINCE_BOOT_NS = 850_000_000_250_000_000, 3_600_000_000_000
# By how much the server's clock is ahead of the machine's.
AHEAD_S = 7200.5
BYTES = ("bit", "bit", "byte", "head", "zeros", "noise", "copy", "copy", "swap", "sector", "longer", "cut")
KINDS = (*BYTES, "value", "value", "two")


def make(path, jobs, *, orderly=True):
    """Make a stopped file with jobs in all states, bodies of all sizes, and free pages with deleted jobs.

    It has pauses, policies and schedules as well.

    If the stop was not orderly, the file does not record how many jobs it has.
    """
    chance = random.Random(7)
    with closing(open_database(path)) as database:
        execute = database.connection.execute
        execute("BEGIN")
        for number in range(1, jobs + 1):
            dues = [4e9, 4.1e9 + number / 7]
            put_by_chance(database.connection, number, chance, [0, 20, 100, 300, 900, 2000, 9000], dues)
        execute("INSERT INTO pauses VALUES ('default', 60, 4e9), ('other-tube', 5, 4.1e9)")
        keys = [("mail.*", "max_tries", "5"), ("mail.*", "then", "move:dead"), ("default", "max_tries", "off")]
        database.connection.executemany(SET_POLICY, [row_of_policy(policy(*each)) for each in keys])
        each_one = (schedule("nightly", last_job=3), schedule("new", last_at=None, last_job=None, next_at=1.9e9))
        database.connection.executemany(SET_SCHEDULE, map(row_of_schedule, each_one))
        seen_s, offset_ns = utc_s(NOW_NS), NOW_NS - SINCE_BOOT_NS
        execute(
            "INSERT INTO server VALUES (1, '1', 1, 'unix:socket', ?, ?, ?, ?, ?, ?)",
            (seen_s, seen_s, seen_s, AHEAD_S, boot_id(), offset_ns),
        )
        execute("COMMIT")
        execute("BEGIN")
        for table in ("jobs", "bodies"):
            execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ? OR id % 11 = 0", (jobs // 3, jobs // 2))  # noqa: S608
        (count,) = execute("SELECT count(*) FROM jobs").fetchone()
        execute("UPDATE meta SET batch = 9, last_id = ?, jobs = ?", (jobs, count if orderly else None))
        execute("COMMIT")


def damage(path, chance):
    """Damage the file in one or two ways, and return a description."""
    kind = chance.choice(KINDS)
    if kind == "two":
        return ", and ".join([_damage_bytes(path, chance, chance.choice(BYTES)) for _ in range(2)])
    return _damage_value(path, chance) if kind == "value" else _damage_bytes(path, chance, kind)


def _damage_bytes(path, chance, kind):
    content = bytearray(path.read_bytes())
    place, other = chance.randrange(len(content)), chance.randrange(len(content))
    page, other_page = place // PAGE * PAGE, other // PAGE * PAGE
    here, there = slice(page, page + PAGE), slice(other_page, other_page + PAGE)
    if kind == "bit":
        content[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        content[place] = (content[place] + chance.randrange(1, 256)) % 256
    elif kind == "head":
        content[page + chance.randrange(12)] = chance.randrange(256)
    elif kind == "zeros":
        content[here] = bytes(len(content[here]))
    elif kind == "noise":
        content[here] = chance.randbytes(len(content[here]))
    elif kind == "copy":
        content[here] = content[there]
    elif kind == "swap":
        content[here], content[there] = content[there], content[here]
    elif kind == "sector":
        begin, source = place // SECTOR * SECTOR, other // SECTOR * SECTOR
        content[begin : begin + SECTOR] = content[source : source + SECTOR]
    elif kind == "longer":
        content += content[there]
    else:
        del content[place:]
    path.write_bytes(content)
    return f"{kind} at {place} ({other})"


def _damage_value(path, chance):
    table = chance.choice(["jobs", "jobs", "jobs", "bodies", "meta", "pauses", "server", "policies", "schedules"])
    column, value = chance.choice(COLUMNS[table]), chance.choice(WRONG)
    with unchecked(path) as connection:
        key = KEYS.get(table, "id")
        keys = [key for (key,) in connection.execute(f"SELECT {key} FROM {table}")]  # noqa: S608 - our own words
        statement = f"UPDATE {table} SET {column} = {value}"  # noqa: S608 - likewise
        row = chance.choice(keys)
        connection.execute(f"{statement} WHERE {key} = ?", (row,))
    return f"{statement} of {row}"
