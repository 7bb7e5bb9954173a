-- A batch appends a row and locks the row of the lease, instead of changing it: versions of one row that some open
-- transaction may still read can't be removed, and every batch would have to pass all of them.

-- The last batches and beats: number is that of the last group commit, and no id above last_id has ever been given out.
-- A server that stands by sees by new rows that the active one is there. Rows up to lease.batch are deleted now and then.
CREATE TABLE batches (
    number  bigint NOT NULL,
    beat    bigint NOT NULL,  -- 0: the row of a batch; else that of a beat, with a number from the sequence beats
    last_id bigint NOT NULL,
    seen_at float8 NOT NULL,
    PRIMARY KEY (number, beat)
) WITH (
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_threshold = -1, vacuum_truncate = off
);

-- Room for beats on a full disk, where a server could not start otherwise: the server has these rows vacuumed afterwards.
INSERT INTO batches SELECT -place, 0, 0, 0 FROM generate_series(1, 10000) AS place;
DELETE FROM batches;

CREATE SEQUENCE beats;

-- Without a key it could not be changed any more once it is published (CREATE PUBLICATION ... FOR ALL TABLES).
ALTER TABLE schema_version ADD PRIMARY KEY (number);

-- An older server can neither take the lease nor store anything from now on: its statements name this column.
ALTER TABLE lease DROP COLUMN beat;

-- The lease as of now: the columns batch, last_id and seen_at of its row are as of some moment in the past.
CREATE VIEW lease_now AS
SELECT
    epoch,
    greatest(batch, number)                AS batch,
    coalesce(beat, 0)                      AS beat,
    greatest(lease.last_id, last.last_id)  AS last_id,
    node, address, version, started_at,
    coalesce(last.seen_at, lease.seen_at)  AS seen_at,
    stopped_at, lease_s
FROM lease LEFT JOIN (SELECT * FROM batches ORDER BY number DESC, beat DESC LIMIT 1) AS last ON true;

-- Take the lease, unless something was stored since it was seen. Its row is locked first: a batch that is under way ends
-- before, and what it has stored is seen by the next statement.
CREATE FUNCTION take_lease(
    seen_epoch bigint, seen_batch bigint, seen_beat bigint, new_node text, new_address text, new_version text
) RETURNS SETOF lease LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM lease WHERE epoch = seen_epoch FOR UPDATE;
    RETURN QUERY
    UPDATE lease
    SET epoch = seen_epoch + 1, batch = seen_batch, last_id = seen.last_id,
        node = new_node, address = new_address, version = new_version,
        started_at = extract(epoch FROM clock_timestamp()), seen_at = extract(epoch FROM clock_timestamp()),
        stopped_at = NULL
    FROM lease_now AS seen
    WHERE (seen.epoch, seen.batch, seen.beat) = (seen_epoch, seen_batch, seen_beat)
    RETURNING lease.*;
    IF FOUND THEN
        INSERT INTO batches
        SELECT batch, nextval('beats'), last_id, seen_at FROM lease;
    END IF;
END $$;

CREATE OR REPLACE VIEW alive AS
SELECT
    CASE
        WHEN stopped_at IS NOT NULL THEN 'stopped in an orderly way'
        WHEN now - seen_at < 30 THEN 'serving'
        ELSE 'not heard of for ' || trunc(now - seen_at)::bigint || ' s: it was killed or is halted, and no other has taken over'
    END AS status,
    version, node, address,
    as_text(started_at) AS started,
    as_text(seen_at) AS seen,
    as_text(stopped_at) AS stopped,
    trunc(now - seen_at)::bigint AS seen_s,
    started_at, seen_at, stopped_at, epoch
FROM lease_now, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;
