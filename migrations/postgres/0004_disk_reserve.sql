-- Space that the server gives back when the disk is full, so that jobs that were put can be stored, and jobs be deleted.
-- With so small a fillfactor a few rows take many pages.
CREATE TABLE disk_reserve (page integer NOT NULL) WITH (fillfactor = 10, autovacuum_enabled = off);
