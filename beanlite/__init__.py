"""A durable work-queue server that speaks the beanstalk protocol."""

from importlib.util import find_spec

__version__ = "0.3.0.dev0"


def is_compiled() -> bool:
    """Whether the server runs as machine code (see .ci/compile.py) rather than from the slower Python sources."""
    engine = find_spec("beanlite.core.engine")
    return engine is not None and not str(engine.origin).endswith(".py")
