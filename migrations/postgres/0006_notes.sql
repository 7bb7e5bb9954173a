-- What workers and operators have left with jobs, such as why one has failed. Apart from the jobs, so that a change of a job
-- does not write its note again.

CREATE TABLE notes (
    id   bigint PRIMARY KEY,  -- of the job
    note text   NOT NULL
);

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
    forgiven, reserves - forgiven AS tries,
    (SELECT note FROM notes WHERE notes.id = jobs.id) AS note
FROM jobs, (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) AS clock;

-- In the order in which kick takes them.
CREATE OR REPLACE VIEW buried AS
SELECT
    tube, buried_seq, id, pri, age_s, ttr_s, reserves, timeouts, releases, buries, kicks, body,
    why, since, in_state_s, created, size, holder, holder_conn, preview, text, since_at, created_at, note
FROM all_jobs
WHERE state = 'buried'
ORDER BY tube, buried_seq;
