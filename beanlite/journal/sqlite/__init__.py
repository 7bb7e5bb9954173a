"""The journal in an SQLite file, and the only place that knows SQL.

``journal`` is the interface to the group commit. Below it are ``upkeep`` (checkpoints, a full disk, giving space back),
``writer`` (transactions), ``batch`` (changes as rows) and ``sync``; ``replay`` reads the jobs back. ``database`` opens,
locks and checks the file, with ``fileformat`` (which files are ours), ``mark`` (a note stored with the file),
``migrations``, ``wal`` (inspects SQLite's own log before it is recovered) and ``room`` (the reserve). ``watch`` and
``audit`` detect what other programs do to the file while it is served. ``backup`` makes a copy, in a separate process.
"""
