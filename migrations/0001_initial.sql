-- The state of the queue: one row a job, changed in group commits by the server and by nobody else.
-- Times are UTC seconds. Read with any tool, at any time; the views at the end are made for that.

CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY,
    tube       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('ready', 'delayed', 'reserved', 'buried')),
    pri        INTEGER NOT NULL,
    delay_s    INTEGER NOT NULL,
    ttr_s      INTEGER NOT NULL,
    created_at REAL    NOT NULL,
    due_at     REAL,              -- delayed: when it becomes ready; reserved: when its ttr ends
    buried_seq INTEGER,           -- buried: its place in the order of burials
    reserves   INTEGER NOT NULL,
    timeouts   INTEGER NOT NULL,
    releases   INTEGER NOT NULL,
    buries     INTEGER NOT NULL,
    kicks      INTEGER NOT NULL,
    crc32      INTEGER NOT NULL,  -- of the body
    body       BLOB               -- NULL: a large one, in bodies
) STRICT;

-- Large bodies stand apart, so that a change of state does not write them again.
CREATE TABLE bodies (
    id   INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE pauses (
    tube    TEXT PRIMARY KEY,
    pause_s INTEGER NOT NULL,
    until   REAL    NOT NULL
) STRICT, WITHOUT ROWID;

-- One row, written when ids are needed: none above last_id has been given out. After an orderly stop it is the last one
-- itself. batch is the number of the group commit that has written the row.
CREATE TABLE meta (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    batch   INTEGER NOT NULL,
    last_id INTEGER NOT NULL
) STRICT;

INSERT INTO meta (one, batch, last_id) VALUES (1, 0, 0);

-- An outside write would put the server's memory and this file apart, so it is refused: only the server's connection
-- has the function that these triggers name, and to any other each change is an error, whatever it would have changed.
-- Keys are never NULL, so the server never gets as far as the call.

CREATE TRIGGER jobs_insert AFTER INSERT ON jobs WHEN NEW.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER jobs_update AFTER UPDATE ON jobs WHEN NEW.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER jobs_delete AFTER DELETE ON jobs WHEN OLD.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER bodies_insert AFTER INSERT ON bodies WHEN NEW.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER bodies_update AFTER UPDATE ON bodies WHEN NEW.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER bodies_delete AFTER DELETE ON bodies WHEN OLD.id IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER pauses_insert AFTER INSERT ON pauses WHEN NEW.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER pauses_update AFTER UPDATE ON pauses WHEN NEW.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER pauses_delete AFTER DELETE ON pauses WHEN OLD.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER meta_insert AFTER INSERT ON meta WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER meta_update AFTER UPDATE ON meta WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER meta_delete AFTER DELETE ON meta WHEN OLD.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

-- The views are for people. Ages and what is left are whole seconds, as of the moment of reading. A job that was
-- reserved when the server died stays under reserved until the next start makes it ready.

-- A paused tube is shown even when it holds no job; paused_until is NULL unless that is still to come.
CREATE VIEW tubes AS
SELECT
    tube,
    count(*) FILTER (WHERE state = 'ready')    AS ready,
    count(*) FILTER (WHERE state = 'delayed')  AS delayed,
    count(*) FILTER (WHERE state = 'reserved') AS reserved,
    count(*) FILTER (WHERE state = 'buried')   AS buried,
    count(state)                               AS total,
    CAST(strftime('%s', 'now') - min(created_at) AS INTEGER) AS oldest_s,
    max(until)                                 AS paused_until
FROM (
    SELECT tube, state, created_at, NULL AS until FROM jobs
    UNION ALL
    SELECT tube, NULL, NULL, until FROM pauses WHERE until > CAST(strftime('%s', 'now') AS INTEGER)
)
GROUP BY tube
ORDER BY tube;

-- In the order in which reserve takes them.
CREATE VIEW ready AS
SELECT
    tube, pri, id,
    CAST(strftime('%s', 'now') - created_at AS INTEGER) AS age_s,
    ttr_s, reserves, timeouts, releases, buries, kicks,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs
WHERE state = 'ready'
ORDER BY tube, pri, id;

-- Soonest first.
CREATE VIEW delayed AS
SELECT
    tube, due_at, id, pri,
    CAST(due_at - strftime('%s', 'now') AS INTEGER) AS delay_left_s,
    CAST(strftime('%s', 'now') - created_at AS INTEGER) AS age_s,
    ttr_s, reserves, timeouts, releases, buries, kicks,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs
WHERE state = 'delayed'
ORDER BY tube, due_at, id;

-- The one whose ttr ends first comes first, whatever its tube.
CREATE VIEW reserved AS
SELECT
    due_at, id, tube, pri,
    CAST(due_at - strftime('%s', 'now') AS INTEGER) AS ttr_left_s,
    CAST(strftime('%s', 'now') - created_at AS INTEGER) AS age_s,
    ttr_s, reserves, timeouts, releases, buries, kicks,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs
WHERE state = 'reserved'
ORDER BY due_at, id;

-- In the order in which kick takes them.
CREATE VIEW buried AS
SELECT
    tube, buried_seq, id, pri,
    CAST(strftime('%s', 'now') - created_at AS INTEGER) AS age_s,
    ttr_s, reserves, timeouts, releases, buries, kicks,
    coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)) AS body
FROM jobs
WHERE state = 'buried'
ORDER BY tube, buried_seq;
