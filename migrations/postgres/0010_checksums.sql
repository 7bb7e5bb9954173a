-- A checksum of each row of jobs, by which a start and beanlite verify notice that it is not what was written.
-- beanlite/journal/checksum.py tells how it is made. Rows that are there already have none until they change.
ALTER TABLE jobs ADD COLUMN row_crc32 bigint;

ALTER TABLE lease ADD COLUMN unchecked_id bigint NOT NULL DEFAULT 0;  -- jobs up to this id may lack a checksum
UPDATE lease SET unchecked_id = (SELECT last_id FROM lease_now);
