"""The journal in an SQLite file, and the only place that knows SQL.

``journal`` is what the group commit sees. Below it: ``upkeep`` (checkpoints, a full disk, room given back), ``writer``
(transactions), ``batch`` (changes as rows) and ``sync``; ``replay`` reads the jobs back. ``database`` opens, locks and
checks the file, with ``fileformat`` (which files are ours), ``mark`` (a note kept at the file), ``migrations``, ``wal``
(a look at SQLite's own log before it is recovered) and ``room`` (the reserve). ``watch`` and ``audit`` notice what
other programs do to the file while it is served. ``backup`` makes a copy, in a process of its own.
"""
