"""``python -m tests.bench``: puts load on any server that speaks the beanstalk protocol, and measures it.

::

    __main__    the command line
    runner      rounds over targets: starts and stops the worker processes, clears away the jobs that they put
    ├── target      a server to drive: its address, or how to start it
    │   └── control     one connection for what is not measured: filling, clearing, statistics
    ├── machine     facts from the operating system: cores, CPU times, file systems
    └── report      medians, ratios, verdicts; as a table
    worker      one generator process: drives its connections as fast as Python can
    ├── workloads   the commands to send, step by step
    │   └── replies     checks the replies
    └── histogram   latencies

Nothing here uses the server's own code: a bench that shared it could share its mistakes. Of the package it has the
operators' client and the kinds of errors.
"""
