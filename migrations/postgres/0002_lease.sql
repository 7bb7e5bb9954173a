-- For how long the active server has to be unheard of before another may take over: it counts on not being followed sooner.
ALTER TABLE lease ADD COLUMN lease_s float8;  -- NULL: not said, by a version that did not
