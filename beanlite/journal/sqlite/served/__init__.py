"""The journal of a server, which holds the file for as long as it runs.

``journal`` is the interface to the group commit. Below it are ``upkeep`` (checkpoints, a full disk, audits) and
``leisure`` (what is done in slices between batches, such as giving space back), ``writer`` (transactions), ``batch``
(changes as rows), ``chronicle`` (what is written beside them) and ``sync``; ``bodies`` reads single bodies. ``watch``
and ``audit`` detect what other programs do to the file meanwhile.
"""
