"""The statements by which the server that has the lease shows the others that it is there."""

from typing import Final

from beanlite.journal.postgres.schema import NOW

# The row of the lease is locked until the beat is committed, as by a batch. A batch that was stored while the beat
# waited for that lock may be missing from what the beat returns.
_BEAT: Final = f"""
    INSERT INTO batches (number, beat, last_id, seen_at)
    SELECT greatest(batch, number), nextval('beats'), greatest(ours.last_id, last.last_id), {NOW}
    FROM {{ours}} AS ours
    LEFT JOIN (SELECT number, last_id FROM batches ORDER BY number DESC, beat DESC LIMIT 1) AS last ON true
    RETURNING number AS batch
"""
BEAT: Final = _BEAT.format(ours="(SELECT batch, last_id FROM lease WHERE epoch = $1 FOR NO KEY UPDATE)")
# Stored before anything is served; until then a standby waits for the lease time that the previous server stored. It is
# a beat as well, lest a standby that has waited that long takes over after this.
SAY: Final = f"""
    WITH said AS (UPDATE lease SET lease_s = $2, pid = $3 WHERE epoch = $1 RETURNING batch, last_id)
    {_BEAT.format(ours="said")}
"""
# Logical replication and a partial restore bring rows without the state of the sequence: beats with lower numbers than
# the last one would be seen by nobody, and servers would take the lease from each other. Sent before it is taken.
CATCH_UP: Final = """
    SELECT setval('beats', beat) FROM (SELECT beat FROM batches ORDER BY number DESC, beat DESC LIMIT 1) AS last
    WHERE beat > nextval('beats')
"""
