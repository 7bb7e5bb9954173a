"""A durable work-queue server that speaks the beanstalk protocol."""

from importlib.util import find_spec

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Whether what serves is machine code (.build/compile.py), and not the sources, which do the same, only slower."""
    engine = find_spec("beanlite.core.engine")
    return engine is not None and not str(engine.origin).endswith(".py")
