"""The journal in PostgreSQL: one server is active and holds the queue, another takes over when it is lost.

Read ``journal.py`` first, then ``sender.py``: a batch is one statement, fenced by the row of the lease.
"""
