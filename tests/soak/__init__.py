"""Mixed load with random faults, for minutes or hours, and a verdict: ``python -m tests.soak --help``.

``run`` starts a server and keeps it company: ``faults`` are done to it, a ``probe`` times an innocent client, and once
a second its memory, descriptors and files are written down. The load comes from a process of its own (``load``), whose
``clients`` note in ``books`` what was acknowledged. ``judge`` says whether all of that is in order, ``plot`` shows it.
"""
