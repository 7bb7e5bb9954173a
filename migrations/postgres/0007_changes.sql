-- Which jobs each batch has changed: a server that stands by keeps a copy of all jobs up to date by it, and has little to read
-- when it takes over. New jobs are not listed, since their ids are above all before. Only the rows of the last batches are kept.

ALTER TABLE batches
    ADD COLUMN before  bigint,    -- the number of the batch before; NULL: a beat, or a batch of an older version
    ADD COLUMN changed bigint[],  -- the ids of jobs that have another state, or a note, since; NULL: none
    ADD COLUMN gone    bigint[];  -- of those that were deleted; NULL: none

-- The ids are not compressed, which takes longer than to write them, and not kept apart from their row if they fit into a page.
ALTER TABLE batches
    ALTER changed SET STORAGE EXTERNAL,
    ALTER gone SET STORAGE EXTERNAL,
    SET (
        toast_tuple_target = 8160,
        toast.autovacuum_vacuum_threshold = 5000, toast.autovacuum_vacuum_scale_factor = 0,
        toast.autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_insert_threshold = -1
    );
