"""The columns of the jobs table in the file, and how rows are added."""

from typing import Final

# Larger bodies have a table of their own, so that changing a job's state does not rewrite its body. For smaller bodies,
# that would only cost a second page in each put and delete.
INLINE_MAX: Final = 1024

# The columns whose values ``row_of`` returns, in its order.
ROW_COLUMNS: Final = """
    id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq, reserves, timeouts, releases, buries, kicks,
    since, holder, holder_conn, why
"""
# They are followed by their checksum and the columns about the body.
COLUMNS: Final = f"{ROW_COLUMNS}, row_crc32, crc32, body"
# A whole row, and a body that is larger than INLINE_MAX.
INSERT_JOB: Final = f"INSERT INTO jobs ({COLUMNS}) VALUES ({', '.join('?' * 21)})"  # noqa: S608 - our own words
INSERT_BODY: Final = "INSERT INTO bodies (id, body) VALUES (?, ?)"
