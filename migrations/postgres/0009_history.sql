-- What has happened to jobs, in that order, as long as it is kept. n rises with each row by about the bytes that it takes,
-- so that the difference of two tells how much is between them.
CREATE TABLE IF NOT EXISTS history (
    n       bigint PRIMARY KEY,
    at      float8 NOT NULL,           -- by the clock of the database
    job     bigint NOT NULL,           -- 0: it happened to a tube, or to what a pattern matches
    tube    text   COLLATE "C" NOT NULL,  -- the one that the job was in from then on
    what    text   COLLATE "C" NOT NULL,
    by      text   COLLATE "C",        -- the client: host:port, or unix; what operators did begins with 'operator '
    conn    bigint,                    -- that client's connection, counted from the start of its server
    pri     bigint NOT NULL,
    delay_s bigint NOT NULL,
    body    bytea                      -- of a deleted job, if bodies are kept, and what was set
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE history ALTER body SET STORAGE EXTERNAL;

-- There is no index by job: it would take about as long as the insert. Who often looks for single jobs can make one.

-- The history with its times as text, and the bodies that it has.
CREATE OR REPLACE VIEW events AS
SELECT
    to_char(to_timestamp(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') AS time,
    job, tube, what, by, conn, pri, delay_s, body_text(body) AS text, body, at, n
FROM history;
