-- What an operator asks of a job beside its state: since when, who has it, and why. And the server itself.

ALTER TABLE jobs ADD COLUMN since REAL;           -- when it came into its state; NULL: not known, it was before this column
ALTER TABLE jobs ADD COLUMN holder TEXT;          -- the client that has it reserved, or had it last: host:port, or unix
ALTER TABLE jobs ADD COLUMN holder_conn INTEGER;  -- that client's connection, counted from the start of its server
ALTER TABLE jobs ADD COLUMN why TEXT;             -- buried: why

-- Of the jobs that are here already it is known only where nothing has happened since the put.
UPDATE jobs SET since = created_at WHERE state = 'ready' AND delay_s = 0 AND reserves = 0 AND kicks = 0;

-- One row: the server that has this file, or had it last. seen_at is written with the batches, once a second at most,
-- and every few seconds while there is nothing to write.
CREATE TABLE server (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    version    TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    address    TEXT    NOT NULL,
    started_at REAL    NOT NULL,
    seen_at    REAL    NOT NULL,
    stopped_at REAL                -- NULL until it has stopped in an orderly way
) STRICT;

CREATE TRIGGER server_insert AFTER INSERT ON server WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER server_update AFTER UPDATE ON server WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER server_delete AFTER DELETE ON server WHEN OLD.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

-- What has been done in each tube in each hour, and in each day: at is the beginning of that span, in UTC seconds. Written
-- with the batches, a second late at most. Hours are kept for 14 days, days for 400.
CREATE TABLE totals (
    span_s    INTEGER NOT NULL,  -- 3600 or 86400
    at        INTEGER NOT NULL,
    tube      TEXT    NOT NULL,
    put       INTEGER NOT NULL,
    reserved  INTEGER NOT NULL,
    deleted   INTEGER NOT NULL,
    released  INTEGER NOT NULL,
    timed_out INTEGER NOT NULL,
    buried    INTEGER NOT NULL,
    kicked    INTEGER NOT NULL,
    waited_s  REAL    NOT NULL,  -- for how long the jobs that were reserved had been ready, in all
    held_s    REAL    NOT NULL,  -- for how long the jobs that came back or were deleted had been reserved, in all
    PRIMARY KEY (span_s, at, tube)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER totals_insert AFTER INSERT ON totals WHEN NEW.at IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER totals_update AFTER UPDATE ON totals WHEN NEW.at IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER totals_delete AFTER DELETE ON totals WHEN OLD.at IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

-- What has happened to jobs, in that order, as long as it is kept. n rises with each row by about the bytes that it takes,
-- so that the difference of two tells how much is between them.
CREATE TABLE history (
    n       INTEGER PRIMARY KEY,
    at      REAL    NOT NULL,
    job     INTEGER NOT NULL,
    tube    TEXT    NOT NULL,     -- the one that the job was in from then on
    what    TEXT    NOT NULL,
    by      TEXT,                 -- the client: host:port, or unix; what operators did begins with 'operator '
    conn    INTEGER,              -- that client's connection, counted from the start of its server
    pri     INTEGER NOT NULL,
    delay_s INTEGER NOT NULL,
    body    BLOB                  -- of a job that was deleted, if bodies are kept
) STRICT;

-- There is no trigger that refuses inserts here, and no index by job: each would take a quarter of an insert's time. Who
-- often looks for single jobs can make one.
CREATE TRIGGER history_update AFTER UPDATE ON history WHEN NEW.n IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER history_delete AFTER DELETE ON history WHEN OLD.n IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

-- The views are for people. Ages and what is left are whole seconds, as of the moment of reading. What ends in _at is a
-- number, UTC seconds since 1970; the same moment as text is in the column without the ending.

DROP VIEW tubes;
DROP VIEW ready;
DROP VIEW delayed;
DROP VIEW reserved;
DROP VIEW buried;

-- All jobs, in whatever state. A job that was reserved when the server died stays so until the next start makes it ready.
CREATE VIEW all_jobs AS
SELECT
    id, tube, state, pri,
    coalesce(length(body), (SELECT length(bodies.body) FROM bodies WHERE bodies.id = jobs.id)) AS size,
    datetime(since, 'unixepoch') AS since,
    CAST(now - created_at AS INTEGER) AS age_s,
    CAST(now - since AS INTEGER) AS in_state_s,
    datetime(due_at, 'unixepoch') AS due,
    CAST(due_at - now AS INTEGER) AS due_in_s,
    holder, holder_conn, why,
    delay_s, ttr_s, reserves, timeouts, releases, buries, kicks,
    datetime(created_at, 'unixepoch') AS created,
    created_at, since AS since_at, due_at, buried_seq,
    -- The first 60 characters, which are at most 240 bytes, on one line.
    replace(replace(replace(substr(CAST(
        substr(coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)), 1, 240)
    AS TEXT), 1, 60), char(13), ' '), char(10), ' '), char(9), ' ') AS preview,
    -- Compare with this, and search in it: no text is equal to, or like, a body, which is a BLOB.
    CAST(coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS TEXT) AS text,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs, (SELECT (julianday('now') - 2440587.5) * 86400 AS now);  -- to the millisecond

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
    SELECT tube, NULL, NULL, NULL, NULL, until FROM pauses WHERE until > (julianday('now') - 2440587.5) * 86400
)
GROUP BY tube
ORDER BY tube;

-- In the order in which reserve takes them.
CREATE VIEW ready AS
SELECT
    tube, pri, id, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at
FROM all_jobs
WHERE state = 'ready'
ORDER BY tube, pri, id;

-- Soonest first.
CREATE VIEW delayed AS
SELECT
    tube, due_at, id, pri, due_in_s AS delay_left_s, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    due, since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at
FROM all_jobs
WHERE state = 'delayed'
ORDER BY tube, due_at, id;

-- The one whose ttr ends first comes first, whatever its tube.
CREATE VIEW reserved AS
SELECT
    due_at, id, tube, pri, due_in_s AS ttr_left_s, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    due, since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at
FROM all_jobs
WHERE state = 'reserved'
ORDER BY due_at, id;

-- In the order in which kick takes them.
CREATE VIEW buried AS
SELECT
    tube, buried_seq, id, pri, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    why, since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at
FROM all_jobs
WHERE state = 'buried'
ORDER BY tube, buried_seq;

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
    CAST(now - seen_at AS INTEGER) AS seen_s,
    started_at, seen_at, stopped_at
FROM server, (SELECT (julianday('now') - 2440587.5) * 86400 AS now);

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE VIEW hours AS
SELECT
    datetime(at, 'unixepoch') AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at
FROM totals
WHERE span_s = 3600;

CREATE VIEW days AS
SELECT
    date(at, 'unixepoch') AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at
FROM totals
WHERE span_s = 86400;

-- How many a minute, in this hour and the one before: over_s is how long that is.
CREATE VIEW rates AS
SELECT
    tube,
    round(sum(put) * 60 / over_s, 2) AS put,
    round(sum(reserved) * 60 / over_s, 2) AS reserved,
    round(sum(deleted) * 60 / over_s, 2) AS deleted,
    round(sum(released) * 60 / over_s, 2) AS released,
    round(sum(timed_out) * 60 / over_s, 2) AS timed_out,
    round(sum(buried) * 60 / over_s, 2) AS buried,
    round(sum(kicked) * 60 / over_s, 2) AS kicked,
    round(sum(waited_s) / sum(reserved), 3) AS wait_s,
    round(sum(held_s) / sum(reserved), 3) AS hold_s,
    CAST(over_s AS INTEGER) AS over_s
FROM totals, (
    SELECT 3600 + now % 3600 + now - CAST(now AS INTEGER) AS over_s, CAST(now AS INTEGER) / 3600 * 3600 - 3600 AS begin
    FROM (SELECT (julianday('now') - 2440587.5) * 86400 AS now)
)
WHERE span_s = 3600 AND at >= begin
GROUP BY tube
ORDER BY tube;

-- The history with its times as text, and the bodies that it has.
CREATE VIEW events AS
SELECT
    strftime('%Y-%m-%d %H:%M:%f', at, 'unixepoch') AS time, job, tube, what, by, conn, pri, delay_s,
    CAST(body AS TEXT) AS text, body, at, n
FROM history;
