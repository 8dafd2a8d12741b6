"""The rules of STYLE and ARCHITECTURE as functions: a source text goes in, one line per offence comes out."""

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headway"

Rule = Callable[[str], Iterator[str]]

RING = ("core", "cost", "sched")
BANNED_IMPORTS = frozenset(
    {
        "time",
        "os",
        "sys",
        "random",
        "secrets",
        "uuid",
        "datetime",
        "asyncio",
        "socket",
        "ssl",
        "select",
        "selectors",
        "threading",
        "_thread",
        "multiprocessing",
        "concurrent",
        "queue",
        "signal",
        "logging",
        "warnings",
        "subprocess",
        "pathlib",
        "io",
        "tempfile",
        "shutil",
        "glob",
        "http",
        "urllib",
        "sqlite3",
        "torch",
        "diffusers",
        "transformers",
        "safetensors",
        "gguf",
        "aiohttp",
        "starlette",
        "uvicorn",
        "uvloop",
        "prometheus_client",
        "opentelemetry",
        "typer",
        "rich",
    }
)
BANNED_BUILTINS = frozenset({"open", "print", "input", "eval", "exec", "breakpoint", "hash", "id"})
MUTABLE_CALLS = frozenset(
    {
        "dict",
        "list",
        "set",
        "bytearray",
        "defaultdict",
        "deque",
        "OrderedDict",
        "Counter",
        "ChainMap",
        "count",
        "cycle",
        "ContextVar",
    }
)
ORDER_KEEPING = frozenset({"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "dict"})
ORDER_FREE = frozenset({"any", "all", "sum", "sorted", "set", "frozenset", "len"})
BANNED_CLASS_NAME = re.compile(r"(Manager|Handler|Helper|Helpers|Util|Utils|Mixin|Data|Info|Misc)$|^Base[A-Z]")
BANNED_MODULE_NAMES = frozenset({"util", "utils", "helper", "helpers", "misc", "common"})


def modules(*packages: str) -> list[Path]:
    """Return the source files of packages of Headway (all of them without arguments)."""
    roots = [SOURCE / package for package in packages] or [SOURCE]
    return sorted(path for root in roots for path in root.rglob("*.py"))


@functools.cache
def parsed(source: str) -> ast.Module:
    """Parse a source text; every rule looks at every file, so it is worth keeping."""
    return ast.parse(source)


def shown(path: Path) -> str:
    """Return a path as the exception list writes it."""
    return path.relative_to(ROOT).as_posix()


def exceptions() -> dict[str, dict[str, int]]:
    """Return the one list of size exceptions: kind -> place -> size."""
    with (ROOT / "tests/arch/exceptions.toml").open("rb") as file:
        return tomllib.load(file)


# --- purity -------------------------------------------------------------------------------------------------------


def impure_imports(source: str) -> Iterator[str]:
    """Imports that let the world in."""
    for node in ast.walk(parsed(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] in BANNED_IMPORTS or name.startswith("numpy.random"):
                yield f"line {node.lineno}: imports {name}"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield f"line {node.lineno}: uses {ast.unparse(node)}"


def impure_calls(source: str) -> Iterator[str]:
    """Built-ins that touch the world or depend on the process."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_BUILTINS:
            yield f"line {node.lineno}: calls {node.func.id}()"


def module_state(source: str) -> Iterator[str]:
    """Names at module level that hold something mutable, and `global` statements."""
    tree = parsed(source)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value, is_final = node.targets, node.value, False
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value, is_final = [node.target], node.value, "Final" in ast.unparse(node.annotation)
        else:
            continue
        if is_final or not _is_mutable(value):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and not _is_constant_name(target.id):
                yield f"line {node.lineno}: module-level mutable {target.id}"
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield f"line {inner.lineno}: global {', '.join(inner.names)}"


def _is_constant_name(name: str) -> bool:
    return name.isupper() or (name.startswith("__") and name.endswith("__"))


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in MUTABLE_CALLS
    return False


def set_iteration(source: str) -> Iterator[str]:
    """Iterations whose order comes from a set: literals, `set(...)`, and names known to hold a set."""
    tree = parsed(source)
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            yield from _set_iteration_in(scope)


def _set_iteration_in(scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> Iterator[str]:
    known = _set_names(scope)
    order_free = {
        id(argument)
        for node in _inside(scope)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE
        for argument in node.args
    }
    for node in _inside(scope):
        iterables: list[ast.expr] = []
        if isinstance(node, (ast.For, ast.AsyncFor)):
            iterables = [node.iter]
        elif isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)) and id(node) not in order_free:
            iterables = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_KEEPING:
            iterables = list(node.args)
        for iterable in iterables:
            if _is_set(iterable, known):
                yield f"line {iterable.lineno}: iterates over the set {ast.unparse(iterable)}"


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk a scope without its nested functions, except that a class sees its methods (for `self.` names)."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if not isinstance(node, nested) or (isinstance(scope, ast.ClassDef) and not isinstance(node, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


def _set_names(scope: ast.AST) -> frozenset[str]:
    """Return the names that the scope annotates or assigns as sets (`x`, or `self.x` seen from the class)."""
    names: list[str] = []
    for node in _inside(scope):
        if isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
            names.append(ast.unparse(node.target))
            if isinstance(scope, ast.ClassDef) and isinstance(node.target, ast.Name):
                names.append(f"self.{node.target.id}")
        elif isinstance(node, ast.Assign) and _is_set(node.value, frozenset()):
            names.extend(ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.arg) and node.annotation is not None and _is_set_annotation(node.annotation):
            names.append(node.arg)
    in_class = isinstance(scope, ast.ClassDef)
    return frozenset(name for name in names if name.startswith("self.") == in_class)


def _is_set_annotation(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).split("[")[0].split(".")[-1] in ("set", "frozenset", "Set", "AbstractSet")


def _is_set(value: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(value, (ast.Set, ast.SetComp)):
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("set", "frozenset")
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
        return _is_set(value.left, known) or _is_set(value.right, known)
    return isinstance(value, (ast.Name, ast.Attribute)) and ast.unparse(value) in known


# --- size ---------------------------------------------------------------------------------------------------------


def function_sizes(source: str) -> Iterator[tuple[str, int]]:
    """Yield qualified name and lines of every function."""
    yield from _function_sizes(parsed(source), "")


def _function_sizes(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, (child.end_lineno or child.lineno) - child.lineno + 1
            yield from _function_sizes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _function_sizes(child, f"{prefix}{child.name}.")
        else:
            yield from _function_sizes(child, prefix)


def class_sizes(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and public methods of every class; a property is a fact, not a method."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef):
            methods = [f for f in node.body if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))]
            public = [f for f in methods if not f.name.startswith("_") and not _is_property(f)]
            yield node.name, len(public)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(d).split(".")[-1] in ("property", "setter") for d in node.decorator_list)


def signature_sizes(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and parameters of every function; a command line function is exempt, its parameters are its flags."""
    for node in ast.walk(parsed(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_command(node):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if arguments and arguments[0].arg in ("self", "cls"):
            arguments = arguments[1:]
        yield node.name, len(arguments)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(re.search(r"\bapp\.(command|callback)\b|\.command\(", ast.unparse(d)) for d in node.decorator_list)


# --- names, types, errors -----------------------------------------------------------------------------------------


def banned_names(source: str) -> Iterator[str]:
    """Class names that say nothing."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef) and BANNED_CLASS_NAME.search(node.name):
            yield f"line {node.lineno}: class {node.name}"


def broad_excepts(source: str) -> Iterator[str]:
    """`except Exception`, `except BaseException` and bare `except`."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            if re.search(r"\b(Base)?Exception\b", caught):
                yield f"line {node.lineno}: catches {caught}"


def unexplained_escapes(source: str) -> Iterator[str]:
    """`Any`, `cast` and `type: ignore` without a reason on the line."""
    lines = source.splitlines()
    found: dict[int, str] = {}
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Name) and node.id in ("Any", "cast"):
            found[node.lineno] = node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("typing.Any", "typing.cast"):
            found[node.lineno] = ast.unparse(node)
    for number, line in enumerate(lines, start=1):
        if re.search(r"#\s*type:\s*ignore", line):
            found[number] = "type: ignore"
            if not re.search(r"#\s*type:\s*ignore\[[a-z0-9, -]+\]", line):
                yield f"line {number}: type: ignore without a code"
    for number, what in sorted(found.items()):
        comment = re.sub(r"#\s*type:\s*ignore(\[[^\]]*\])?", "", lines[number - 1])
        comment = re.sub(r"#\s*noqa(: [A-Z0-9, ]+)?", "", comment)
        reason = comment.partition("#")[2].strip(" #")
        if len(reason.split()) < 2:
            yield f"line {number}: {what} without a reason"


def sleeps(source: str) -> Iterator[str]:
    """Waiting in a test, and reading the wall clock there."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            waits = node.args and not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
            if called in ("time.sleep", "sleep") or (called == "asyncio.sleep" and waits):
                yield f"line {node.lineno}: {called}"


# --- policies -----------------------------------------------------------------------------------------------------


def snake_case(name: str) -> str:
    """Return the file stem of a class name: `LeastSlack` -> `least_slack`, `LPM` -> `lpm`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def policy_file_offences(stem: str, source: str) -> Iterator[str]:
    """A policy file holds one public class, named after the file, that declares its `Params` and what it `needs`."""
    public = [node for node in parsed(source).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    if [snake_case(node.name).replace("_", "") for node in public] != [stem.replace("_", "")]:
        yield f"public classes {[node.name for node in public]}, expected one that is named after {stem}.py"
        return
    declared = {node.name for node in public[0].body if isinstance(node, ast.ClassDef)}
    declared |= {ast.unparse(node.target) for node in public[0].body if isinstance(node, ast.AnnAssign)}
    for name in sorted({"Params", "needs"} - declared):
        yield f"{public[0].name} does not declare {name}"


# --- texts --------------------------------------------------------------------------------------------------------

# Written in pieces, so that this file does not offend itself.
_PATHS = r"(/" + r"work/|/" + r"farm/|/" + r"root/\.|/" + r"tmp/[a-z]|/" + r"home/[a-z]|/" + r"Users/[A-Za-z])"
_HOSTS = r"(pypi\." + r"org|pythonhosted\." + r"org|download\.pytorch\." + r"org|/opt/" + r"(pypi|wheels))"
MACHINE_TEXT = re.compile(_PATHS + "|" + _HOSTS)


def machine_text(text: str) -> Iterator[str]:
    """Absolute paths of one machine, and hosts of package registries."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = MACHINE_TEXT.search(line)
        if match:
            yield f"line {number}: {match.group(0)}"


def offences(paths: Sequence[Path], rule: Rule) -> list[str]:
    """Apply a rule to files and name the place of each offence."""
    return [f"{shown(path)}: {line}" for path in paths for line in rule(path.read_text(encoding="utf-8"))]
