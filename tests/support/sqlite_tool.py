"""The sqlite3 command-line tool at a database that is being served."""

import shutil
import subprocess
from contextlib import contextmanager

from tests.support.needs import need


def need_it():
    """Skip the test if there is no sqlite3 command-line tool."""
    need(shutil.which("sqlite3"), "sqlite3 is not installed")


@contextmanager
def outsider(file):
    """Run the sqlite3 command-line tool on the database; yield a function that executes a statement in it."""
    need_it()
    tool = subprocess.Popen(["sqlite3", str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(statement):
        """Execute a statement to its end."""
        tool.stdin.write(f"{statement}\nSELECT 'done';\n")
        tool.stdin.flush()
        assert tool.stdout.readline() == "done\n"

    with tool:
        yield do
        tool.stdin.close()


def tell(file, statement):
    """Execute a statement with the sqlite3 command-line tool, and return its stderr."""
    need_it()
    return subprocess.run(["sqlite3", str(file), statement], capture_output=True, text=True, check=False).stderr


def ask(file, statement):
    """The same, returning its stdout."""
    need_it()
    return subprocess.run(["sqlite3", str(file), statement], capture_output=True, text=True, check=True).stdout
