"""What the table of jobs has in the file."""

from typing import Final

# Larger bodies have a table of their own, so that a change of a job's state does not write its body again. For smaller
# ones that would only cost a second page in each put and delete.
INLINE_MAX: Final = 1024

# The columns that ``row_of`` makes, in its order.
ROW_COLUMNS: Final = """
    id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq, reserves, timeouts, releases, buries, kicks,
    since, holder, holder_conn, why
"""
# After them come the checksum of these, and those that are about the body.
COLUMNS: Final = f"{ROW_COLUMNS}, row_crc32, crc32, body"
