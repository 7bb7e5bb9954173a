-- What operators have set for tubes, and the jobs that the server puts by itself.

-- Times in these two tables are UTC, and not by the server's clock.

-- A row for each key that a pattern has: the name of a tube, or a glob with * and ?. beanlite/core/policies.py tells what the
-- keys and their values are.
CREATE TABLE policies (
    pattern    TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    changed_at REAL NOT NULL,
    changed_by TEXT NOT NULL,
    -- The row once more, as in pauses.
    said       TEXT AS (
        pattern || ' ' || key || ' ' || value || ' ' || CAST(changed_at * 4194304 AS INTEGER) || ' ' || changed_by
    ) STORED,
    PRIMARY KEY (pattern, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER policies_insert AFTER INSERT ON policies WHEN NEW.pattern IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER policies_update AFTER UPDATE ON policies WHEN NEW.pattern IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER policies_delete AFTER DELETE ON policies WHEN OLD.pattern IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TABLE schedules (
    name           TEXT PRIMARY KEY,
    timing         TEXT    NOT NULL,  -- five fields of cron, or every with a duration
    zone           TEXT    NOT NULL,  -- the one in which the fields of cron are read
    tube           TEXT    NOT NULL,
    body           BLOB    NOT NULL,
    pri            INTEGER NOT NULL,
    ttr_s          INTEGER NOT NULL,
    if_absent      INTEGER NOT NULL,  -- 1: nothing is put while its last job is there
    once_if_missed INTEGER NOT NULL,  -- 1: what was missed while no server ran is put once; 0: not at all
    next_at        REAL    NOT NULL,
    last_at        REAL,              -- when it last put a job, and the id of that; NULL: it never did
    last_job       INTEGER,
    changed_at     REAL    NOT NULL,
    changed_by     TEXT    NOT NULL,
    crc32          INTEGER NOT NULL   -- of the whole row: beanlite/journal/schedule_rows.py tells how
) STRICT, WITHOUT ROWID;

CREATE TRIGGER schedules_insert AFTER INSERT ON schedules WHEN NEW.name IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER schedules_update AFTER UPDATE ON schedules WHEN NEW.name IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER schedules_delete AFTER DELETE ON schedules WHEN OLD.name IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

ALTER TABLE jobs ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0;  -- how many of its reserves do not count as tries

ALTER TABLE totals ADD COLUMN dead INTEGER NOT NULL DEFAULT 0;        -- jobs that came back after too many tries
ALTER TABLE totals ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;     -- jobs that became too old
ALTER TABLE totals ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;     -- puts that would have been too many jobs
ALTER TABLE totals ADD COLUMN duplicates INTEGER NOT NULL DEFAULT 0;  -- puts whose job was there already

DROP VIEW all_jobs;
DROP VIEW hours;
DROP VIEW days;
DROP VIEW rates;

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
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body,
    forgiven, reserves - forgiven AS tries
FROM jobs, (
    SELECT
        (julianday('now') - 2440587.5) * 86400 AS now,  -- to the millisecond
        coalesce((SELECT ahead_s FROM server), 0) AS ahead_s
);

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE VIEW hours AS
SELECT
    datetime(at, 'unixepoch') AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at,
    dead, expired, refused, duplicates
FROM totals
WHERE span_s = 3600;

CREATE VIEW days AS
SELECT
    date(at, 'unixepoch') AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at,
    dead, expired, refused, duplicates
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
    CAST(over_s AS INTEGER) AS over_s,
    round(sum(dead) * 60 / over_s, 2) AS dead,
    round(sum(expired) * 60 / over_s, 2) AS expired,
    round(sum(refused) * 60 / over_s, 2) AS refused,
    round(sum(duplicates) * 60 / over_s, 2) AS duplicates
FROM totals, (
    SELECT 3600 + now % 3600 + now - CAST(now AS INTEGER) AS over_s, CAST(now AS INTEGER) / 3600 * 3600 - 3600 AS begin
    FROM (SELECT (julianday('now') - 2440587.5) * 86400 AS now)
)
WHERE span_s = 3600 AND at >= begin
GROUP BY tube
ORDER BY tube;

-- What holds for each tube: of each key the value that wins, and the pattern that has it. Tubes are shown that have a job, a
-- pause or a policy under their own name.
CREATE VIEW tube_policies AS
SELECT tube, key, value, pattern
FROM (
    SELECT
        tube, key, value, pattern,
        row_number() OVER (
            PARTITION BY tube, key
            -- The name of the tube itself, then the glob with the most characters that stand for themselves.
            ORDER BY pattern = tube DESC, length(replace(replace(pattern, '*', ''), '?', '')) DESC, pattern
        ) AS place
    FROM (
        SELECT tube FROM jobs
        UNION
        SELECT tube FROM pauses
        UNION
        SELECT pattern FROM policies WHERE pattern NOT GLOB '*[*?]*'
    ) AS names JOIN policies ON tube GLOB pattern
)
WHERE place = 1 AND value <> 'off'
ORDER BY tube, key;

-- The schedules with their times as text, and their bodies.
CREATE VIEW all_schedules AS
SELECT
    name, timing, zone, tube,
    datetime(next_at, 'unixepoch') AS next,
    datetime(last_at, 'unixepoch') AS last,
    last_job, pri, ttr_s, if_absent, once_if_missed,
    datetime(changed_at, 'unixepoch') AS changed,
    changed_by, next_at, last_at, changed_at,
    CAST(body AS TEXT) AS text, body
FROM schedules
ORDER BY name;
