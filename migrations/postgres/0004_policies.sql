-- What operators have set for tubes, and the jobs that the server puts by itself.

-- A row for each key that a pattern has: the name of a tube, or a glob with * and ?. beanlite/core/policies.py tells what the
-- keys and their values are.
CREATE TABLE policies (
    pattern    text   COLLATE "C" NOT NULL,
    key        text   COLLATE "C" NOT NULL,
    value      text   NOT NULL,
    changed_at float8 NOT NULL,
    changed_by text   NOT NULL,
    PRIMARY KEY (pattern, key)
);

CREATE TABLE schedules (
    name           text    COLLATE "C" PRIMARY KEY,
    timing         text    NOT NULL,  -- five fields of cron, or every with a duration
    zone           text    NOT NULL,  -- the one in which the fields of cron are read
    tube           text    COLLATE "C" NOT NULL,
    body           bytea   NOT NULL,
    pri            bigint  NOT NULL,
    ttr_s          bigint  NOT NULL,
    if_absent      boolean NOT NULL,  -- nothing is put while its last job is there
    once_if_missed boolean NOT NULL,  -- what was missed while no server ran is put once; otherwise not at all
    next_at        float8  NOT NULL,
    last_at        float8,            -- when it last put a job, and the id of that; NULL: it never did
    last_job       bigint,
    changed_at     float8  NOT NULL,
    changed_by     text    NOT NULL,
    crc32          bigint  NOT NULL   -- of the whole row: beanlite/journal/schedule_rows.py tells how
);

ALTER TABLE jobs ADD COLUMN forgiven bigint NOT NULL DEFAULT 0;  -- how many of its reserves do not count as tries

ALTER TABLE totals ADD COLUMN dead bigint NOT NULL DEFAULT 0;        -- jobs that came back after too many tries
ALTER TABLE totals ADD COLUMN expired bigint NOT NULL DEFAULT 0;     -- jobs that became too old
ALTER TABLE totals ADD COLUMN refused bigint NOT NULL DEFAULT 0;     -- puts that would have been too many jobs
ALTER TABLE totals ADD COLUMN duplicates bigint NOT NULL DEFAULT 0;  -- puts whose job was there already

-- All jobs, in whatever state. A job that was reserved when the server died stays so until the next start makes it ready.
CREATE OR REPLACE VIEW all_jobs AS
SELECT
    id, tube, state, pri,
    length(body) AS size,
    as_text(since) AS since,
    trunc(now - created_at)::bigint AS age_s,
    trunc(now - since)::bigint AS in_state_s,
    as_text(due_at) AS due,
    trunc(due_at - now)::bigint AS due_in_s,
    holder, holder_conn, why,
    delay_s, ttr_s, reserves, timeouts, releases, buries, kicks,
    as_text(created_at) AS created,
    created_at, since AS since_at, due_at, buried_seq,
    -- The first 60 characters on one line.
    translate(left(body_text(body), 60), E'\r\n\t', '   ') AS preview,
    body_text(body) AS text,
    body,
    forgiven, reserves - forgiven AS tries
FROM jobs, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE OR REPLACE VIEW hours AS
SELECT
    as_text(at) AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at,
    dead, expired, refused, duplicates
FROM totals
WHERE span_s = 3600;

CREATE OR REPLACE VIEW days AS
SELECT
    left(as_text(at), 10) AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at,
    dead, expired, refused, duplicates
FROM totals
WHERE span_s = 86400;

-- How many a minute, in this hour and the one before: over_s is how long that is.
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
    round((sum(duplicates) * 60 / over_s)::numeric, 2) AS duplicates
FROM totals, (
    SELECT 3600 + now - floor(now / 3600) * 3600 AS over_s, floor(now / 3600) * 3600 - 3600 AS begin
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
) AS span
WHERE span_s = 3600 AND at >= begin
GROUP BY tube, over_s
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
            ORDER BY pattern = tube DESC, length(translate(pattern, '*?', '')) DESC, pattern
        ) AS place
    FROM (
        SELECT tube FROM jobs
        UNION
        SELECT tube FROM pauses
        UNION
        SELECT pattern FROM policies WHERE pattern !~ '[*?]'
    ) AS names JOIN policies ON tube LIKE translate(replace(pattern, '_', '!_'), '*?', '%_') ESCAPE '!'
) AS places
WHERE place = 1 AND value <> 'off'
ORDER BY tube, key;

-- The schedules with their times as text, and their bodies.
CREATE VIEW all_schedules AS
SELECT
    name, timing, zone, tube,
    as_text(next_at) AS next,
    as_text(last_at) AS last,
    last_job, pri, ttr_s, if_absent, once_if_missed,
    as_text(changed_at) AS changed,
    changed_by, next_at, last_at, changed_at,
    body_text(body) AS text, body
FROM schedules
ORDER BY name;
