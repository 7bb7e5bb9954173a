-- What happens to jobs without a command, in the totals.

ALTER TABLE totals ADD COLUMN client_gone bigint NOT NULL DEFAULT 0;  -- reservations that ended because their client left
ALTER TABLE totals ADD COLUMN delay_over bigint NOT NULL DEFAULT 0;   -- delayed jobs that became ready by themselves

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE OR REPLACE VIEW hours AS
SELECT
    as_text(at) AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at,
    dead, expired, refused, duplicates, client_gone, delay_over
FROM totals
WHERE span_s = 3600;

CREATE OR REPLACE VIEW days AS
SELECT
    left(as_text(at), 10) AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at,
    dead, expired, refused, duplicates, client_gone, delay_over
FROM totals
WHERE span_s = 86400;

-- How many a minute, in this hour and the one before: over_s is how long that is. A clock that was ahead leaves later hours.
CREATE OR REPLACE VIEW rates AS
SELECT
    tube,
    round((sum(put) * 60 / over_s)::numeric, 2) AS put,
    round((sum(reserved) * 60 / over_s)::numeric, 2) AS reserved,
    round((sum(deleted) * 60 / over_s)::numeric, 2) AS deleted,
    round((sum(released) * 60 / over_s)::numeric, 2) AS released,
    round((sum(timed_out) * 60 / over_s)::numeric, 2) AS timed_out,
    round((sum(buried) * 60 / over_s)::numeric, 2) AS buried,
    round((sum(kicked) * 60 / over_s)::numeric, 2) AS kicked,
    round((sum(waited_s) / nullif(sum(reserved), 0))::numeric, 3) AS wait_s,
    round((sum(held_s) / nullif(sum(reserved), 0))::numeric, 3) AS hold_s,
    over_s::bigint AS over_s,
    round((sum(dead) * 60 / over_s)::numeric, 2) AS dead,
    round((sum(expired) * 60 / over_s)::numeric, 2) AS expired,
    round((sum(refused) * 60 / over_s)::numeric, 2) AS refused,
    round((sum(duplicates) * 60 / over_s)::numeric, 2) AS duplicates,
    round((sum(client_gone) * 60 / over_s)::numeric, 2) AS client_gone,
    round((sum(delay_over) * 60 / over_s)::numeric, 2) AS delay_over
FROM totals, (
    SELECT 3600 + now - floor(now / 3600) * 3600 AS over_s, floor(now / 3600) * 3600 - 3600 AS begin
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
) AS span
WHERE span_s = 3600 AND at BETWEEN begin AND begin + 3600
GROUP BY tube, over_s
ORDER BY tube;
