"""The journal in an SQLite file.

``journal`` is the interface to the group commit. Below it are ``upkeep`` (checkpoints, a full disk, audits) and
``leisure`` (what is done in slices between batches, such as giving space back), ``writer`` (transactions), ``batch``
(changes as rows), ``chronicle`` (what is written beside them) and ``sync``; ``replay`` reads the jobs back, and
``bodies`` single bodies later. ``database`` opens, locks and checks the file, with ``fileformat`` (which files are
ours), ``mark`` (a note stored with the file), ``migrations``, ``wal`` (inspects SQLite's own log before it is
recovered) and ``room`` (the reserve). ``watch`` and ``audit`` detect what other programs do to the file while it is
served.

Most of the rest is for commands, which run in processes of their own: ``backup``, ``restore``, ``verify``, ``salvage``
and so on.
"""
