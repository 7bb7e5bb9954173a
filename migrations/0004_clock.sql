-- By which clock the times are. due_at, until, created_at and since are by the server's clock, which goes on evenly when that
-- of the machine is set, and from one server to the next; so a delay of an hour lasts an hour. The views show UTC.

DROP VIEW all_jobs;
DROP VIEW tubes;
DROP VIEW alive;

CREATE TABLE new_server (
    one        INTEGER PRIMARY KEY,  -- no CHECK, as in meta
    version    TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    address    TEXT    NOT NULL,
    started_at REAL    NOT NULL,
    seen_at    REAL    NOT NULL,
    stopped_at REAL,                     -- NULL until it has stopped in an orderly way
    ahead_s    REAL    NOT NULL DEFAULT 0,  -- at seen_at: by how much it is ahead of the machine's clock
    boot       TEXT,                     -- the id of the boot of the machine; NULL: not known
    offset_ns  INTEGER,                  -- what it would have shown at that boot, in ns since 2000
    -- What the next server sets its clock by, once more, as in pauses.
    said       TEXT AS (
        CAST(seen_at * 4194304 AS INTEGER) || ' ' || CAST(ahead_s * 4194304 AS INTEGER) || ' ' ||
        coalesce(boot, '-') || ' ' || coalesce(offset_ns, '-')
    ) STORED
) STRICT;

INSERT INTO new_server (one, version, pid, address, started_at, seen_at, stopped_at)
SELECT one, version, pid, address, started_at, seen_at, stopped_at FROM server;

PRAGMA legacy_alter_table = ON;
DROP TABLE server;
ALTER TABLE new_server RENAME TO server;
PRAGMA legacy_alter_table = OFF;

CREATE TRIGGER server_insert AFTER INSERT ON server WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER server_update AFTER UPDATE ON server WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER server_delete AFTER DELETE ON server WHEN OLD.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

-- All jobs, in whatever state. A job that was reserved when the server died stays so until the next start makes it ready.
CREATE VIEW all_jobs AS
SELECT
    id, tube, state, pri,
    coalesce(length(body), (SELECT length(bodies.body) FROM bodies WHERE bodies.id = jobs.id)) AS size,
    datetime(since - ahead_s, 'unixepoch') AS since,
    CAST(max(now + ahead_s - created_at, 0) AS INTEGER) AS age_s,
    CAST(max(now + ahead_s - since, 0) AS INTEGER) AS in_state_s,
    datetime(due_at - ahead_s, 'unixepoch') AS due,
    CAST(due_at - ahead_s - now AS INTEGER) AS due_in_s,
    holder, holder_conn, why,
    delay_s, ttr_s, reserves, timeouts, releases, buries, kicks,
    datetime(created_at - ahead_s, 'unixepoch') AS created,
    created_at - ahead_s AS created_at, since - ahead_s AS since_at, due_at - ahead_s AS due_at, buried_seq,
    -- The first 60 characters, which are at most 240 bytes, on one line.
    replace(replace(replace(substr(CAST(
        substr(coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)), 1, 240)
    AS TEXT), 1, 60), char(13), ' '), char(10), ' '), char(9), ' ') AS preview,
    -- Compare with this, and search in it: no text is equal to, or like, a body, which is a BLOB.
    CAST(coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS TEXT) AS text,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs, (
    SELECT
        (julianday('now') - 2440587.5) * 86400 AS now,  -- to the millisecond
        coalesce((SELECT ahead_s FROM server), 0) AS ahead_s
);

-- A paused tube is shown even when it holds no job; paused_until is NULL unless that is still to come. oldest_s is the age
-- of the oldest job in whatever state; oldest_ready_s is for how long the job that is ready longest has been so.
CREATE VIEW tubes AS
SELECT
    tube,
    count(*) FILTER (WHERE state = 'ready')    AS ready,
    count(*) FILTER (WHERE state = 'delayed')  AS delayed,
    count(*) FILTER (WHERE state = 'reserved') AS reserved,
    count(*) FILTER (WHERE state = 'buried')   AS buried,
    count(state)                               AS total,
    max(age_s)                                 AS oldest_s,
    max(until)                                 AS paused_until,
    max(in_state_s) FILTER (WHERE state = 'ready') AS oldest_ready_s,
    coalesce(sum(size), 0)                     AS bytes,
    datetime(max(until), 'unixepoch')          AS paused
FROM (
    SELECT tube, state, age_s, in_state_s, size, NULL AS until FROM all_jobs
    UNION ALL
    SELECT tube, NULL, NULL, NULL, NULL, until
    FROM (SELECT tube, until - coalesce((SELECT ahead_s FROM server), 0) AS until FROM pauses)
    WHERE until > (julianday('now') - 2440587.5) * 86400
)
GROUP BY tube
ORDER BY tube;

-- Whether the server lives, and as of when this file is: what has happened later than seen is not in it.
CREATE VIEW alive AS
SELECT
    CASE
        WHEN stopped_at IS NOT NULL THEN 'stopped in an orderly way'
        WHEN now - seen_at < 30 THEN 'serving'
        ELSE 'not heard of for ' || CAST(now - seen_at AS INTEGER) || ' s: it was killed or is halted, or this is a copy'
    END AS status,
    version, pid, address,
    datetime(started_at, 'unixepoch') AS started,
    datetime(seen_at, 'unixepoch') AS seen,
    datetime(stopped_at, 'unixepoch') AS stopped,
    CAST(max(now - seen_at, 0) AS INTEGER) AS seen_s,
    started_at, seen_at, stopped_at
FROM server, (SELECT (julianday('now') - 2440587.5) * 86400 AS now);
