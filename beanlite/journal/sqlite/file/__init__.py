"""What the file is, on the disk and to SQLite; nothing here decides when anything is done.

``database`` opens, locks and checks the file, with ``fileformat`` (which files are ours), ``mark`` (a note stored with
the file), ``stray`` (whether the -wal belongs to it), ``migrations``, ``wal`` (inspects SQLite's own log before it is
recovered) and ``room`` (the reserve). ``replay`` reads the jobs back.
"""
