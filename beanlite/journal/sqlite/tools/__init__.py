"""Commands about a file, in processes of their own: ``backup``, ``restore``, ``verify``, ``salvage`` and so on."""
