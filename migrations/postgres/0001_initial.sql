-- The state of the queue: one row a job, changed in group commits by the active server and by nobody else.
-- Times are UTC seconds. Read with any tool, at any time; the views at the end are made for that.

-- One row: who may write. epoch is raised by whoever takes over, and each statement of a server names its own, so that
-- nothing of a server whose time is over is stored. beat rises with each statement: a server that stands by sees by it that
-- the active one is there. batch is the number of the last group commit; no id above last_id has ever been given out.
CREATE TABLE lease (
    one        integer PRIMARY KEY CHECK (one = 1),
    epoch      bigint  NOT NULL,
    beat       bigint  NOT NULL,
    batch      bigint  NOT NULL,
    last_id    bigint  NOT NULL,
    node       text    NOT NULL,
    address    text    NOT NULL,
    version    text    NOT NULL,
    started_at float8  NOT NULL,
    seen_at    float8  NOT NULL,
    stopped_at float8             -- NULL until it has stopped in an orderly way
) WITH (fillfactor = 10);

INSERT INTO lease VALUES (1, 0, 0, 0, 0, '', '', '', 0, 0, 0);

-- The primary key is the only index, so that a change of a row stays within its page.
CREATE TABLE jobs (
    id          bigint  PRIMARY KEY,
    tube        text    COLLATE "C" NOT NULL,
    state       text    COLLATE "C" NOT NULL CHECK (state IN ('ready', 'delayed', 'reserved', 'buried')),
    pri         bigint  NOT NULL,
    delay_s     bigint  NOT NULL,
    ttr_s       bigint  NOT NULL,
    created_at  float8  NOT NULL,
    due_at      float8,            -- delayed: when it becomes ready; reserved: when its ttr ends
    buried_seq  bigint,            -- buried: its place in the order of burials
    reserves    bigint  NOT NULL,
    timeouts    bigint  NOT NULL,
    releases    bigint  NOT NULL,
    buries      bigint  NOT NULL,
    kicks       bigint  NOT NULL,
    since       float8  NOT NULL,  -- when it came into its state
    holder      text,              -- the client that has it reserved, or had it last: host:port, or unix
    holder_conn bigint,            -- that client's connection, counted from the start of its server
    why         text,              -- buried: why
    crc32       bigint  NOT NULL,  -- of the body
    body        bytea   NOT NULL
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0.5
);
ALTER TABLE jobs ALTER body SET STORAGE EXTERNAL;

CREATE TABLE pauses (
    tube    text COLLATE "C" PRIMARY KEY,
    pause_s bigint NOT NULL,
    until   float8 NOT NULL
);

-- What has been done in each tube in each hour, and in each day: at is the beginning of that span, in UTC seconds. Written
-- with the batches, a second late at most. Hours are kept for 14 days, days for 400.
CREATE TABLE totals (
    span_s    bigint NOT NULL,  -- 3600 or 86400
    at        bigint NOT NULL,
    tube      text   COLLATE "C" NOT NULL,
    put       bigint NOT NULL,
    reserved  bigint NOT NULL,
    deleted   bigint NOT NULL,
    released  bigint NOT NULL,
    timed_out bigint NOT NULL,
    buried    bigint NOT NULL,
    kicked    bigint NOT NULL,
    waited_s  float8 NOT NULL,  -- for how long the jobs that were reserved had been ready, in all
    held_s    float8 NOT NULL,  -- for how long the jobs that came back or were deleted had been reserved, in all
    PRIMARY KEY (span_s, at, tube)
);

-- The views are for people. Ages and what is left are whole seconds, as of the moment of reading. What ends in _at is a
-- number, UTC seconds since 1970; the same moment as text is in the column without the ending.

CREATE FUNCTION as_text(at float8) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') $$;

-- A body as text where it is UTF-8, else as bytea prints it.
CREATE FUNCTION body_text(body bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(body, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(body, 'escape');
END $$;

-- All jobs, in whatever state. A job that was reserved when the server died stays so until the next start makes it ready.
CREATE VIEW all_jobs AS
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
    body
FROM jobs, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;

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
    as_text(max(until))                        AS paused
FROM (
    SELECT tube, state, age_s, in_state_s, size, NULL::float8 AS until FROM all_jobs
    UNION ALL
    SELECT tube, NULL, NULL, NULL, NULL, until FROM pauses WHERE until > extract(epoch FROM clock_timestamp())
) AS rows
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

-- Which server is active, and whether it lives.
CREATE VIEW alive AS
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
FROM lease, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;

-- The totals, with the beginning of each hour or day as text, and what a job has waited and was held on average.
CREATE VIEW hours AS
SELECT
    as_text(at) AS hour, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at
FROM totals
WHERE span_s = 3600;

CREATE VIEW days AS
SELECT
    left(as_text(at), 10) AS day, tube, put, reserved, deleted, released, timed_out, buried, kicked,
    round((waited_s / nullif(reserved, 0))::numeric, 3) AS wait_s,
    round((held_s / nullif(reserved, 0))::numeric, 3) AS hold_s,
    waited_s, held_s, at
FROM totals
WHERE span_s = 86400;

-- How many a minute, in this hour and the one before: over_s is how long that is.
CREATE VIEW rates AS
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
    over_s::bigint AS over_s
FROM totals, (
    SELECT 3600 + now - floor(now / 3600) * 3600 AS over_s, floor(now / 3600) * 3600 - 3600 AS begin
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock
) AS span
WHERE span_s = 3600 AND at >= begin
GROUP BY tube, over_s
ORDER BY tube;
