-- What a disk has changed by itself is noticed in the rows, too, and not only in the bodies.

-- Of the row but for its body: beanlite/journal/sqlite/file/checksum.py tells how. NULL: an older version has written the row,
-- and nothing has happened to the job since.
ALTER TABLE jobs ADD COLUMN row_crc32 INTEGER;

-- Anew, because of what each row now has in it twice: SQLite writes said when it writes the row, and only damage can make
-- the two differ.
CREATE TABLE new_meta (
    one          INTEGER PRIMARY KEY,  -- no CHECK: SQLite would then not copy said from a connection that only reads
    batch        INTEGER NOT NULL,
    last_id      INTEGER NOT NULL,
    unchecked_id INTEGER NOT NULL,  -- the last job whose row_crc32 may be NULL
    jobs         INTEGER,           -- how many there are, from an orderly stop to the next start; NULL otherwise
    said         TEXT AS (batch || ' ' || last_id || ' ' || unchecked_id || ' ' || coalesce(jobs, '-')) STORED
) STRICT;

INSERT INTO new_meta (one, batch, last_id, unchecked_id)
SELECT one, batch, last_id, (SELECT coalesce(max(id), 0) FROM jobs) FROM meta;

DROP TABLE meta;
ALTER TABLE new_meta RENAME TO meta;

CREATE TRIGGER meta_insert AFTER INSERT ON meta WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER meta_update AFTER UPDATE ON meta WHEN NEW.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER meta_delete AFTER DELETE ON meta WHEN OLD.one IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TABLE new_pauses (
    tube    TEXT PRIMARY KEY,
    pause_s INTEGER NOT NULL,
    until   REAL    NOT NULL,
    -- All bits of the time, and whole numbers, which every version of SQLite writes alike.
    said    TEXT AS (tube || ' ' || pause_s || ' ' || CAST(until * 4194304 AS INTEGER)) STORED
) STRICT, WITHOUT ROWID;

INSERT INTO new_pauses (tube, pause_s, until) SELECT tube, pause_s, until FROM pauses;

-- Views are made of it, which SQLite would otherwise have to find whole at each step.
PRAGMA legacy_alter_table = ON;
DROP TABLE pauses;
ALTER TABLE new_pauses RENAME TO pauses;
PRAGMA legacy_alter_table = OFF;

CREATE TRIGGER pauses_insert AFTER INSERT ON pauses WHEN NEW.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER pauses_update AFTER UPDATE ON pauses WHEN NEW.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;

CREATE TRIGGER pauses_delete AFTER DELETE ON pauses WHEN OLD.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;
