-- How often a server has taken the lease of one that did not give it back: it was killed, halted or cut off. This and the
-- history may be there already, since they remain when a database goes back to the version before.

ALTER TABLE lease ADD COLUMN IF NOT EXISTS takeovers bigint NOT NULL DEFAULT 0;

ALTER TABLE lease ADD COLUMN IF NOT EXISTS pid bigint;  -- of the server's process; NULL: not said, by a version that did not

-- Take the lease, unless something was stored since it was seen. Its row is locked first: a batch that is under way ends
-- before, and what it has stored is seen by the next statement.
CREATE OR REPLACE FUNCTION take_lease(
    seen_epoch bigint, seen_batch bigint, seen_beat bigint, new_node text, new_address text, new_version text
) RETURNS SETOF lease LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM lease WHERE epoch = seen_epoch FOR UPDATE;
    RETURN QUERY
    UPDATE lease
    SET epoch = seen_epoch + 1, batch = seen_batch, last_id = seen.last_id,
        node = new_node, address = new_address, version = new_version,
        started_at = extract(epoch FROM clock_timestamp()), seen_at = extract(epoch FROM clock_timestamp()),
        takeovers = takeovers + (lease.stopped_at IS NULL)::integer, stopped_at = NULL, pid = NULL
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
    started_at, seen_at, stopped_at, epoch,
    (SELECT takeovers FROM lease) AS takeovers,
    (SELECT pid FROM lease) AS pid
FROM lease_now, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;
