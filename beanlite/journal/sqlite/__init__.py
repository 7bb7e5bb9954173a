"""The journal in an SQLite file.

``file`` is what the file is, ``served`` the journal that a server keeps in it, and ``tools`` are commands about it,
which run in processes of their own. Both import from ``file``, and neither from the other.
"""
