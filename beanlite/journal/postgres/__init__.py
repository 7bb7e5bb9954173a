"""The journal in PostgreSQL: one server is active and holds the queue, and a standby takes over when it is lost.

Read ``journal.py`` first, then ``sender.py``. Each batch is one statement, fenced by the row of the lease.
"""
