"""``beanlite bench``: load for any server that speaks the beanstalk protocol, and what it does under it.

::

    runner      rounds over targets: starts and stops the worker processes, clears away what they put
    ├── target      a server to drive: where it listens, or how it is started
    │   └── control     one connection for what is not measured: filling, clearing, statistics
    ├── machine     what the operating system knows: cores, CPU times, file systems
    └── report      medians, ratios, verdicts; as a table
    worker      one generator process: connections, sent to and read from as fast as Python can
    ├── workloads   what is sent, step by step
    │   └── replies     what must come back
    └── histogram   latencies

Nothing here knows the server's own code: a bench that shared it could share its mistakes.
"""
