-- What workers and operators have left with jobs, such as why one has failed. Apart from the jobs, so that a change of a job
-- does not write its note again.

CREATE TABLE notes (
    id    INTEGER PRIMARY KEY,  -- of the job
    note  TEXT    NOT NULL,
    crc32 INTEGER NOT NULL      -- of the row: beanlite/journal/note_rows.py tells how
) STRICT;

CREATE TRIGGER notes_insert AFTER INSERT ON notes WHEN NEW.note IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER notes_update AFTER UPDATE ON notes WHEN NEW.note IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER notes_delete AFTER DELETE ON notes WHEN OLD.note IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

DROP VIEW all_jobs;
DROP VIEW buried;

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
    forgiven, reserves - forgiven AS tries,
    (SELECT note FROM notes WHERE notes.id = jobs.id) AS note
FROM jobs, (
    SELECT
        (julianday('now') - 2440587.5) * 86400 AS now,  -- to the millisecond
        coalesce((SELECT ahead_s FROM server), 0) AS ahead_s
);

-- In the order in which kick takes them.
CREATE VIEW buried AS
SELECT
    tube, buried_seq, id, pri, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    why, since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at, note
FROM all_jobs
WHERE state = 'buried'
ORDER BY tube, buried_seq;
