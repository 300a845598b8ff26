"""Python files outside the package: a method, a network. They are executed where a rule lets them.

A file is read once. Its digest is that of the bytes which are compiled here, so neither a change in
between nor a __pycache__ beside it matters. What the file imports is not covered by that digest:
its folder is not on Python's path, so it imports what is installed.

    own        the rule for code that the user of this process runs by name; it counts as approved
    approved   the rule for all else: this user has approved the digest (`colonnade trust`)
    pinned     the same, and a federation file or a run's manifest must name the digest too
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shlex
import sys
import traceback
import unicodedata
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from colonnade.errors import InputError, RunError
from colonnade.owner import data_folder, private


@dataclass(frozen=True)
class Source:
    """The bytes of a Python file, as they were read."""

    path: Path
    content: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str:
        """UTF-8, as a person reads it. Python would also follow a comment that names an encoding,
        in which another comment may be code."""
        return self.content.decode("utf-8-sig")


# Letters and marks without a shape, some of them good in names: fillers, and variations of nothing
UNSEEN = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0").union(map(chr, range(0xE0100, 0xE01F0)))

Rule = Callable[[Source], str]  # why a file may not be executed; empty: it may


# ---- rules ---------------------------------------------------------------------------------------


def own(source: Source) -> str:
    """The user runs it by name: it may, and from then on a resume or a prediction may, too."""
    with suppress(RunError):  # where nothing can be noted, those will ask
        approve(source)
    return ""


def approved(source: Source) -> str:
    """Whether this user has approved these very bytes."""
    return "" if source.sha256 in approvals() else _unapproved(source)


def pinned(pins: Mapping[str, str], where: str, trusted: Collection[str] = ()) -> Rule:
    """The rule for code that others have named too.

    pins     the digest of every file by its name, as the file `where` says
    trusted  what this party's policy approves, besides its own approvals
    """

    def rule(source: Source) -> str:
        why, line = [], f'[code] "{source.path.name}" = "{source.sha256}"'
        if (pin := pins.get(source.path.name)) is None:
            why.append(f"{where} does not say which file that is: all must agree on {line}")
        elif pin != source.sha256:
            why.append(f"{where} says that its sha256 is {pin}; this file has {source.sha256}")
        if source.sha256 not in trusted:
            why.append(approved(source))  # last, for it ends with what is to be typed
        return ". And ".join(filter(None, why))

    return rule


def approve(source: Source) -> None:
    """Note that this user approves these bytes, wherever they lie."""
    if source.sha256 in approvals():
        return
    row = {"sha256": source.sha256, "file": source.path.name, "at": f"{datetime.now(UTC):%F %T}"}
    try:
        with private():
            _store().parent.mkdir(parents=True, exist_ok=True)
            with _store().open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise RunError(f"{_store()} cannot be written: {error.strerror}") from None


def approvals() -> set[str]:
    """The digests that this user has approved."""
    try:
        lines = _store().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise RunError(f"{_store()}: {error.strerror}") from None
    found = set()
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):  # a line that was cut approves nothing
            found.add(str(json.loads(line)["sha256"]))
    return found


def _store() -> Path:
    return data_folder() / "approved-code.jsonl"


def _unapproved(source: Source) -> str:
    return (
        f"code from a file is executed once you have approved it, and nobody has approved this one "
        f"here (sha256 {source.sha256}). Read it, then: "
        f"colonnade trust {shlex.quote(os.fspath(source.path))}"
    )


# ---- loading -------------------------------------------------------------------------------------


def read(path: Path, what: str, error: type[InputError]) -> Source:
    """A Python file; whatever is wrong with it is an `error` that names it."""
    if not path.is_file():
        raise error(f"{what} = '{path}': there is no such file")
    try:
        return Source(path, path.read_bytes())
    except OSError as problem:
        raise error(f"{what} = '{path}': {problem.strerror}") from None


def admit(path: Path, what: str, error: type[InputError], rule: Rule) -> Source:
    """Read a file and ask the rule; it is executed when `load_module` first asks for it."""
    source = read(path, what, error)
    if why := rule(source):
        raise error(f"{what} = '{path}': {why}")
    spec = ModuleSpec(_name(path), _Bytes(source), origin=os.fspath(path))
    module = module_from_spec(spec)
    module.__file__ = os.fspath(path)
    sys.modules[spec.name] = module  # dataclasses look their module up
    return source


def admitted(path: Path) -> Source | None:
    """The bytes of a file that was admitted, whatever the file holds by now."""
    module = sys.modules.get(_name(path))
    loader = None if module is None or module.__spec__ is None else module.__spec__.loader
    return loader.source if isinstance(loader, _Bytes) else None


def load_module(path: Path, what: str, error: type[InputError]) -> ModuleType:
    """The module in a file that was admitted; whatever goes wrong names the file and the line."""
    if admitted(path) is None:
        admit(path, what, error, approved)
    name = _name(path)
    module = sys.modules[name]
    loader = module.__spec__.loader if module.__spec__ is not None else None
    assert isinstance(loader, _Bytes)
    try:
        loader.execute(module)
    except Exception as problem:
        del sys.modules[name]
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == os.fspath(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise error(f"{what} = '{path}': {type(problem).__name__}: {problem}{where}") from problem
    return module


def _name(path: Path) -> str:
    return "colonnade_own_" + hashlib.sha256(os.fspath(path.resolve()).encode()).hexdigest()[:12]


class _Bytes(Loader):
    """A loader of bytes that were read before; it executes them once."""

    def __init__(self, source: Source) -> None:
        self.source, self._executed = source, False

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None: ...

    def execute(self, module: ModuleType) -> None:
        if not self._executed:
            self._executed = True
            name = os.fspath(self.source.path)
            code = compile(self.source.text, name, "exec", dont_inherit=True)
            exec(code, module.__dict__)


# ---- what a file says of itself ------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """What a file declares, found by parsing it. What it does, only reading it tells."""

    method: str  # the name in its METHOD = Method(name=…); empty: none
    kinds: tuple[str, ...]  # the messages that it declares
    functions: tuple[str, ...]  # and classes, at the top level: what `model` can name
    imports: tuple[str, ...]  # the packages that it imports, anywhere
    beside: tuple[str, ...]  # those of them that lie beside it, and that no approval covers
    invisible: int  # characters that no editor shows, and that may hide what is executed

    @property
    def sentence(self) -> str:
        parts = [f"declares method '{self.method}'"] if self.method else []
        parts += [
            f"{what} {', '.join(found)}"
            for what, found in (
                ("Kinds", self.kinds),
                ("functions and classes", self.functions),
                ("imports", self.imports),
            )
            if found
        ]
        return "; ".join(parts) or "declares nothing"


def declared(source: Source) -> Declared:
    """What a file declares; nothing of it is executed."""
    try:
        text = source.text
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{source.path} is not a Python file in UTF-8: {error}") from None
    imports, kinds = set[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports.add((node.module or ".").partition(".")[0] if not node.level else ".")
        elif isinstance(node, ast.Call) and _called(node) == "Kind":
            kinds.append(_named(node))
    methods = [
        _named(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(target, ast.Name) and target.id == "METHOD" for target in node.targets)
    ]
    tops = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    here = source.path.parent
    beside = [n for n in imports if n == "." or _lies_in(here, n)]
    return Declared(
        methods[-1] if methods else "",
        tuple(_shown(kind) for kind in kinds),
        tuple(_shown(node.name) for node in tree.body if isinstance(node, tops)),
        tuple(sorted(imports)),
        tuple(sorted(beside)),
        sum(map(_hides, text.replace("\r\n", "\n"))),
    )


def _called(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _named(call: ast.Call) -> str:
    """The first argument, or `name`; a file may also compute it."""
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
    if given and isinstance(given[0], ast.Constant):
        return _shown(str(given[0].value))
    return "(computed)"


def _lies_in(folder: Path, name: str) -> bool:
    """Whether a module does."""
    with suppress(OSError):  # no file can have that name
        return (folder / f"{name}.py").exists() or (folder / name).is_dir()
    return False


def _hides(letter: str) -> bool:
    """Whether editors or terminals do not show it, or show something else because of it."""
    if letter.isascii():
        return letter not in "\n\t" and not letter.isprintable()
    return unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") or letter in UNSEEN


def _shown(text: str) -> str:
    """As a terminal may show it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60])
