"""What mypyc makes something else of is not written in the modules that it compiles; each kind was seen to differ."""

import ast
import tomllib

import pytest

from tests.support.layout import FILES, ROOT, module_of, parsed

PYPROJECT = ROOT.parent / "pyproject.toml"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
# What takes from an iterator only as much as is asked for.
LAZY = {"next", "iter", "enumerate", "zip", "map", "filter", "closing"}
# What it awaits at its end does not let anything else run.
TIMEOUT = "asyncio.timeout"


def compiled_files():
    hook = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    named = [ROOT.parent / name for name in hook["custom"]["modules"]]
    return [
        file
        for file in FILES
        if file.name != "__init__.py"
        and any(each in (file, *file.parents) for each in named)
        and str(file.relative_to(ROOT.parent)) not in hook["custom"]["interpreted"]
    ]


def within(nodes):
    """Yield these nodes and what is in them, without functions inside."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            todo.extend(ast.iter_child_nodes(node))


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def named_slices(tree):
    """The lines at which a slice gets a name outside of any function: compiled, it is taken for an index."""
    for node in tree.body:
        for part in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef) else ():
            if isinstance(part, ast.Call) and ast.unparse(part.func) == "slice":
                yield part.lineno


def pauses_amid_an_error(tree):
    """The lines that let others run amid the handling of an error.

    Compiled, they see the error as theirs, and if they handle one of their own, this one is lost: what raises it again
    ends with a TypeError. The end of ``async with`` is such a line.
    """
    for function in functions(tree):
        for node in within(function.body):
            parts = [each for handler in node.handlers for each in handler.body] if isinstance(node, ast.Try) else []
            parts += node.finalbody if isinstance(node, ast.Try) else []
            yield from (each.lineno for each in within(parts) if isinstance(each, SUSPENDS))
            if isinstance(node, ast.AsyncWith):
                contexts = [ast.unparse(item.context_expr) for item in node.items]
                if not all(each.startswith(f"{TIMEOUT}(") for each in contexts):
                    yield node.lineno


def generators_with_an_end(tree):
    """The lines of a yield that something follows in any case: compiled, not if the generator is simply dropped."""
    for function in functions(tree):
        for node in within(function.body):
            if isinstance(node, ast.With) or (isinstance(node, ast.Try) and node.finalbody):
                yield from (each.lineno for each in within(node.body) if isinstance(each, ast.Yield | ast.YieldFrom))


def changed_ranges(tree):
    """The lines of a loop over a range that changes with its bounds, and whose variable is also another one.

    Compiled, the bounds are read in each turn, and an empty range sets the variable as well.
    """
    for function in functions(tree):
        for node in within(function.body):
            if isinstance(node, ast.For) and ast.unparse(node.iter).startswith("range("):
                stored = {
                    each.id: each for each in within(function.body) if is_stored(each) and each is not node.target
                }
                inside = {each.id for each in within(node.body) if is_stored(each)}
                bounds = {each.id for each in ast.walk(node.iter) if isinstance(each, ast.Name)}
                if ast.unparse(node.target) in stored or bounds & inside:
                    yield node.lineno


def is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def forgotten_attributes(tree):
    """The lines that read an attribute to which a statement before has assigned None: compiled, it can't be another."""
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            emptied = set()
            for statement in block if isinstance(block, list) else ():
                parts = list(within([statement]))
                if {ast.unparse(each) for each in parts if is_attribute(each, ast.Load)} & emptied:
                    yield statement.lineno
                written = {ast.unparse(each) for each in parts if is_attribute(each, ast.Store)}
                is_none = isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "None"
                emptied = emptied | written if is_none else emptied - written


def is_attribute(node, context):
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, context)


def kept_generators(tree):
    """The lines of a generator expression that is not used up at once: compiled, it is a list that is made there."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp):
            parent = parents[node]
            is_given = isinstance(parent, ast.Call) and ast.unparse(parent.func) not in LAZY
            is_unpacked = isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)
            if not (is_given or is_unpacked or isinstance(parent, ast.Starred)):
                yield node.lineno


KINDS = {
    named_slices: (
        "A = slice(1, 2)\nB: Final = (slice(3),)\nclass C:\n  D = slice(4)\ndef f():\n  slice(1)",
        [1, 2, 4],
    ),
    pauses_amid_an_error: (
        f"""
async def f():
    try:
        await a
    except E:
        await b
        raise
    finally:
        await c
    async with d:
        await e
    async with {TIMEOUT}(1):
        await g
""",
        [6, 9, 10],
    ),
    generators_with_an_end: ("def f():\n with a:\n  yield 1\n try:\n  yield 2\n finally:\n  b()\n yield 3", [3, 5]),
    kept_generators: ("a = (b for b in c)\nd, e = (b for b in c)\nsum(b for b in c)\nnext(b for b in c)", [1, 4]),
    changed_ranges: (
        "def f(n):\n for i in range(n):\n  a(i)\n for j in range(n):\n  n = 1\n k = 7\n for k in range(2):\n  pass",
        [4, 7],
    ),
    forgotten_attributes: (
        """
def f(self):
    self.a = self.b = None
    self.g()
    self.a = 5
    print(self.a)
    if self.b is None:
        self.c = None
    elif self.c:
        return self.b
""",
        [7],
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_is_found(kind):
    program, lines = KINDS[kind]
    assert sorted(kind(ast.parse(program))) == lines


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_is_not_written(kind):
    found = {str(file.relative_to(ROOT)): sorted(kind(parsed(file))) for file in compiled_files()}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_the_compiled_files_are_those_that_are_listed():
    names = {str(file.relative_to(ROOT)) for file in compiled_files()}
    assert {"host/clock.py", "core/engine.py", "net/connection.py"} < names
    assert not {"server/server.py", "core/transitions.py", "core/__init__.py"} & names


def test_no_class_that_is_not_compiled_derives_from_one_that_is():
    compiled = set(compiled_files())
    classes = {(f"beanlite.{module_of(file)}", kind.name) for file in compiled for kind in classes_of(file)}
    derived = []
    for file in set(FILES) - compiled:
        imports = [each for each in parsed(file).body if isinstance(each, ast.ImportFrom)]
        names = {
            name.asname or name.name for each in imports for name in each.names if (each.module, name.name) in classes
        }
        derived += [kind.name for kind in classes_of(file) if names & {ast.unparse(base) for base in kind.bases}]
    assert derived == []


def classes_of(file):
    return [node for node in parsed(file).body if isinstance(node, ast.ClassDef)]
