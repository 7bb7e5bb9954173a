-- What happens to jobs without a command, in the totals.

ALTER TABLE totals ADD COLUMN client_gone INTEGER NOT NULL DEFAULT 0;  -- reservations that ended because their client left
ALTER TABLE totals ADD COLUMN delay_over INTEGER NOT NULL DEFAULT 0;   -- delayed jobs that became ready by themselves

DROP VIEW hours;
DROP VIEW days;
DROP VIEW rates;

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE VIEW hours AS
SELECT
    datetime(at, 'unixepoch') AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at,
    dead, expired, refused, duplicates, client_gone, delay_over
FROM totals
WHERE span_s = 3600;

CREATE VIEW days AS
SELECT
    date(at, 'unixepoch') AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round(waited_s / reserved, 3) AS wait_s, round(held_s / reserved, 3) AS hold_s, waited_s, held_s, at,
    dead, expired, refused, duplicates, client_gone, delay_over
FROM totals
WHERE span_s = 86400;

-- How many a minute, in this hour and the one before: over_s is how long that is. A clock that was ahead leaves later hours.
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
    round(sum(duplicates) * 60 / over_s, 2) AS duplicates,
    round(sum(client_gone) * 60 / over_s, 2) AS client_gone,
    round(sum(delay_over) * 60 / over_s, 2) AS delay_over
FROM totals, (
    SELECT 3600 + now % 3600 + now - CAST(now AS INTEGER) AS over_s, CAST(now AS INTEGER) / 3600 * 3600 - 3600 AS begin
    FROM (SELECT (julianday('now') - 2440587.5) * 86400 AS now)
)
WHERE span_s = 3600 AND at BETWEEN begin AND begin + 3600
GROUP BY tube
ORDER BY tube;
