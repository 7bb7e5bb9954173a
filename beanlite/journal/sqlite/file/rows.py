"""The columns of the jobs table in the file, and how rows are added; and those of pauses."""

from typing import Final

from beanlite.journal.columns import LATER, NAMES, as_list

# Larger bodies have a table of their own, so that changing a job's state does not rewrite its body. For smaller bodies,
# that would only cost a second page in each put and delete.
INLINE_MAX: Final = 1024

# The columns whose values ``row_of`` returns, followed by their checksum and the columns about the body.
WHOLE: Final = (*NAMES, "row_crc32", "crc32", "body")
COLUMNS: Final = as_list(WHOLE)
_SINCE: Final = NAMES.index("since")
_LATER: Final = len(NAMES) - len(LATER)
# All columns in the order of the table: given in another order, SQLite sorts the values of each row.
IN_TABLE: Final = (
    *NAMES[:_SINCE], "crc32", "body", *NAMES[_SINCE:_LATER], "row_crc32", *NAMES[_LATER:]
)  # fmt: skip
# A whole row, and a body that is larger than INLINE_MAX.
INSERT_JOB: Final = f"INSERT INTO jobs ({COLUMNS}) VALUES ({', '.join('?' * len(WHOLE))})"
INSERT_BODY: Final = "INSERT INTO bodies (id, body) VALUES (?, ?)"
SET_PAUSE: Final = "REPLACE INTO pauses (tube, pause_s, until) VALUES (?, ?, ?)"
UNSET_PAUSE: Final = "DELETE FROM pauses WHERE tube = ?"
