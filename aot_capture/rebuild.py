"""Compile captured kernels: a worker process, run as `PYTHON -I rebuild.py FOLDER` by a Python that has Triton.

It reads one JSON object a line from standard input: first the session (`Session.__init__`), then jobs, and answers each
with a line on standard output. Of the capture file it runs functions alone, as data in the session. It imports neither
the captured program nor torch.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import json
import linecache
import os
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Iterable
from typing import Any, Optional


def _load_package() -> None:
    """Make `aot_capture` importable by its path, without an entry on sys.path."""
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "aot_capture", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["aot_capture"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _load_package()

from aot_capture.installation import files_of_key, triton_key, triton_root  # noqa: E402
from aot_capture.recorder import constexprs_of_hash  # noqa: E402
from aot_capture.values import Decoder, ValueDecodeError  # noqa: E402

Message = dict[str, Any]
Records = dict[str, dict[str, Any]]

TRITON_FOLDER = "@TRITON@"
"""Stands for the folder of Triton's package in the metadata of a kernel, until the kernel is installed."""
PRINTED_BYTES = 1 << 16
"""Most bytes of the compiler's output in an answer: its end."""
OPTIONS_OF_TARGET = ("arch", "backend_name", "warp_size", "extern_libs", "ir_override")
"""Compiler options that the target decides, and those that name files."""
FORBIDDEN_BUILTINS = ("breakpoint", "compile", "eval", "exec", "exit", "input", "open", "quit")


class RebuildError(Exception):
    """A kernel cannot be rebuilt, for the reason given."""


class Session:
    """Functions and classes of a capture file, and the installation of Triton whose keys are stated."""

    def __init__(
        self,
        functions: Records,
        aggregates: Records,
        stated_key: Optional[str],
        root: str,
        binary_only: bool,
    ) -> None:
        """Open a session.

        Args:
            functions: `function` records by id.
            aggregates: `aggregate` records by id.
            stated_key: the captured installation's part of the cache keys; None for this installation's own.
            root: folder of the captured Triton: libraries that kernels are linked with lie in it.
            binary_only: leave out the stages of compilation before the code object.
        """
        import triton

        self.records, self.class_records, self.root, self.binary_only = functions, aggregates, root, binary_only
        self.functions: dict[str, Any] = {}
        self.classes: dict[str, Any] = {}
        self.modules: dict[str, list[_Module]] = {}
        self.differing: dict[str, list[str]] = {}
        self.begun: set[str] = set()
        self.decode = Decoder(self.function, self.aggregate).decode
        self.here = os.path.dirname(triton.__file__)
        if stated_key is not None:
            _state_triton_key(stated_key)
            _state_root(self.here, root)
        triton.knobs.compilation.store_binary_only = binary_only
        if hasattr(triton.knobs.nvidia, "dump_ptxas_log"):
            triton.knobs.nvidia.dump_ptxas_log = True  # for the warnings of ptxas

    def _by_name(self, encoded: dict[str, Any]) -> dict[str, Any]:
        return {name: self.decode(value) for name, value in encoded.items()}

    def _by_path(self, encoded: list[Any]) -> dict[tuple[int, ...], Any]:
        return {tuple(path): self.decode(value) for path, value in encoded}

    # Functions and classes

    def aggregate(self, identifier: str) -> Any:
        """Return the class of an `aggregate` record."""
        from triton.language import core

        if identifier not in self.classes:
            if identifier not in self.class_records:
                raise RebuildError(f"class {identifier!r} is not in the capture file")
            record = self.class_records[identifier]
            body = {"__module__": record["module"], "__qualname__": record["qualname"]}
            body["__annotations__"] = self._by_name(record["annotations"])
            body.update(self._by_name(record["defaults"]))
            body.update(self._by_name(record["methods"]))
            self.classes[identifier] = core._aggregate(type(record["qualname"].split(".")[-1], (), body))
        return self.classes[identifier]

    def function(self, identifier: str) -> Any:
        """Return the JITFunction (or its like) of a `function` record: source, lines, and the globals that it names."""
        if identifier not in self.functions:
            if identifier not in self.records:
                raise RebuildError(f"function {identifier!r} is not in the capture file")
            if identifier in self.begun:
                raise RebuildError(f"{self.records[identifier]['qualname']} refers to itself in a circle")
            self.begun.add(identifier)
            try:
                self._make(identifier)
            finally:
                self.begun.discard(identifier)
        return self.functions[identifier]

    def _make(self, identifier: str) -> None:
        from triton.runtime import jit

        record = self.records[identifier]
        if record.get("source") is None:
            raise RebuildError(
                f"the source of {record['name']!r} is not in the capture file (--no-source), nor at {record['file']}"
            )
        python, missing = self._defined(record, f"<captured:{identifier}>")
        made = self.functions[identifier] = _of_type(record, python)
        if record["name"] not in record["closure"]:
            python.__globals__[record["name"]] = made
        if record["type"] not in ("marked", "builtin"):  # those are not in Triton's hashes
            raw = record.get("raw_source") or record["source"]
            made.file_name, made.starting_line_number, made.def_file_line_number = (
                record["file"], record["line"], record["def_line"],
            )  # fmt: skip
            if hasattr(made, "def_file_col_number"):
                made.def_file_col_number = jit.get_def_col_number(raw)
            if self._hash(made, record) != record["key"]:
                self.differing[identifier] = missing
            made.raw_src = raw.splitlines(True)
            if record["launch_metadata"]:
                made.launch_metadata = None
        python.__code__ = python.__code__.replace(co_filename=record["file"], co_firstlineno=record["def_line"])

    def _defined(self, record: Message, file: str) -> tuple[Any, list[str]]:
        """Define a function in the namespace of its module. Returns it, and the reasons why names are missing."""
        missing: list[str] = []

        def values(encoded: dict[str, Any]) -> dict[str, Any]:
            found = {}
            for name, value in encoded.items():
                try:
                    found[name] = self.decode(value)
                except RebuildError:
                    raise
                except Exception as error:  # only the kernels that need this value fail
                    missing.append(f"{name} ({error})")
            return found

        closure = {name: value for name, value in record["refers"].items() if name in record["closure"]}
        refers = {name: value for name, value in record["refers"].items() if name not in closure}
        module = self._module(record, refers)
        lacking = module.lacking(refers)
        for name, value in values(lacking).items():
            module.define(name, lacking[name], value)
        return _defined(record, module.names, values(closure), file), missing

    def _module(self, record: Message, refers: dict[str, Any]) -> _Module:
        """Return the module of a function's globals: another one where the captured values of a name differ."""
        own = {} if record["name"] in record["closure"] else {record["name"]: {"function": record["id"]}}
        made = self.modules.setdefault(record["module"], [])
        for module in made:
            if module.claim({**refers, **own}):
                return module
        made.append(_Module(record["module"]))
        made[-1].claim({**refers, **own})
        return made[-1]

    def _hash(self, made: Any, record: Message) -> str:
        """Hash a function as the program did: functions that it had not hashed before hide their constexprs."""
        called = [self.functions[name] for name in _functions_in(list(record["refers"].values()))]
        called = [function for function in called if constexprs_of_hash(function)]
        hidden = [
            function
            for function in called
            if any(constexpr not in record["constexprs"] for constexpr in constexprs_of_hash(function))
        ]
        key = _hash_without(made, hidden)
        if key != record["key"] and hidden != called:  # closures may have constexprs that look alike
            key = _hash_without(made, called)
        return key

    def _all_unlike(self, identifiers: list[str]) -> list[str]:
        """Return the functions, among these and those that they use, whose hash differs from the captured one."""
        seen, waiting, found = set(), list(identifiers), []
        while waiting:
            identifier = waiting.pop()
            if identifier in seen:
                continue
            seen.add(identifier)
            record = self.records[identifier]
            if identifier in self.differing:
                missing = ", ".join(self.differing[identifier])
                found.append(record["qualname"] + (f", where {missing} cannot be made again" if missing else ""))
            waiting += _functions_in(list(record["refers"].values()))
        return sorted(found)

    # Jobs

    def kernel(self, job: Message) -> Message:
        """Compile a kernel. Returns its folder in the cache, its files, and what a launch must know."""
        import triton
        from triton.compiler.compiler import ASTSource, make_backend
        from triton.runtime.cache import get_cache_manager

        record = job["kernel"]
        target = _target(job["target"])
        _set_environment(record["environment"])
        _assume(target)
        fn = self.function(record["function"])
        kind: Any = ASTSource
        if record["language"] == "GLUON":
            from triton.experimental.gluon._runtime import GluonASTSource

            kind = GluonASTSource
        backend = make_backend(target)
        given = self._options(record, target, backend)
        attributes = self._by_path(record["attributes"])
        signature = self._by_name(record["signature"])
        if backend.binary_ext == "hsaco" and record["target"][0] != target.backend:
            attributes = _with_pointer_ranges(signature, attributes)
        source = kind(fn, signature, self._by_path(record["constants"]), attributes)
        options = backend.parse_options(dict(given, **source.parse_options()))
        key = [source.hash(), backend.hash(), options.hash(), str(sorted(_key_environment().items()))]
        compiled = triton.compile(source, target=target, options=given)
        manager = get_cache_manager(compiled.hash)
        group = manager.get_group(f"{source.name[:150]}.json")
        metadata = compiled.metadata._asdict()
        return {
            "hash": compiled.hash,
            "key": key,
            "unlike": self._all_unlike([record["function"], *_functions_in(record["constants"])]),
            "folder": os.path.basename(manager.cache_dir),
            "files": self._files(manager.cache_dir, list(group)),
            "binary": f"{source.name[:150]}.{backend.binary_ext}",
            "symbol": metadata["name"],
            "arguments": _arguments(signature, metadata),
            "scratch_pointers": 1 + ("profile_scratch_size" in metadata),
            "num_warps": metadata["num_warps"],
            "warp_size": target.warp_size,
            "lds_bytes": metadata["shared"],
            "listing": _text(compiled.asm.get("amdgcn") or compiled.asm.get("ptx")),
        }

    def _options(self, record: Message, target: Any, backend: Any) -> dict[str, Any]:
        from triton.compiler.compiler import make_backend

        options = self._by_name(record["options"])
        roots = tuple(os.path.join(root, "") for root in (self.root, self.here))
        for name, path in options.get("extern_libs") or ():
            if not os.path.normpath(path).startswith(roots):
                raise RebuildError(f"it is linked with a library of the program's own, {name!r}, which the file lacks")
        if options.get("ir_override"):
            raise RebuildError("it replaces a stage of its compilation by a file (ir_override), which the file lacks")
        if list(record["target"]) == [target.backend, target.arch, target.warp_size]:
            return {name: value for name, value in options.items() if name != "extern_libs"}
        captured = make_backend(_target(record["target"])).parse_options({}).__dict__
        known, chosen = backend.parse_options({}).__dict__, record["given"]
        return {
            name: value
            for name, value in options.items()
            if name in known and name not in OPTIONS_OF_TARGET and (name in chosen or value != captured.get(name))
        }

    def _files(self, folder: str, group: list[str]) -> list[str]:
        """Remove paths from the files of a kernel's group, so that they can be shipped. Returns their names."""
        names = [name for name in group if not (self.binary_only and name.endswith(".source"))]
        listed = next(name for name in names if name.endswith(".json"))
        with open(os.path.join(folder, listed)) as file:
            metadata = json.load(file)
        if metadata.get("extern_libs"):
            libraries = metadata["extern_libs"]
            metadata["extern_libs"] = [[name, path.replace(self.here, TRITON_FOLDER)] for name, path in libraries]
        _write(os.path.join(folder, listed), json.dumps(metadata))
        _write(os.path.join(folder, f"__grp__{listed}"), json.dumps({"child_paths": {name: name for name in names}}))
        return [*sorted(names), f"__grp__{listed}"]

    def autotune(self, job: Message) -> Message:
        """Write the result of an autotuner where Triton looks for it; `aot_capture.autotuning` does for any config."""
        from triton.compiler.compiler import make_backend
        from triton.runtime import cache

        record, target = job["autotune"], _target(job["target"])
        _set_environment(job["environment"])
        fn, key = self.function(record["function"]), self.decode(record["key"])
        parts = [triton_key(), make_backend(target).hash(), fn.cache_key, str(sorted(_key_environment().items()))]
        parts += [str(key), *(text for _, _, text, _ in record["configs"])]
        manager = cache.get_cache_manager(hashlib.sha256("-".join(parts).encode()).hexdigest())
        timings = [[dict(self._by_name(config), pre_hook=None), times] for config, times, _, _ in record["configs"]]
        name = f"{fn.__name__[:150]}.autotune.json"
        path = manager.put(json.dumps({"key": key, "configs_timings": timings}), name, binary=False)
        return {"folder": os.path.basename(os.path.dirname(path)), "files": [name]}

    def launchers(self, job: Message) -> Message:
        """Compile the C modules that Triton up to 3.6 makes with a C compiler at its first launches.

        The job has `kernels` (records), `target`, `headers` (the folder of Python.h) and `suffix` of extension modules.
        """
        texts: dict[str, str] = {}
        for record in job["kernels"]:
            texts.setdefault(self._launcher_text(record), "__triton_launcher")
        if job["target"][0] == "cuda":
            import triton.backends.nvidia.driver as nvidia

            with open(os.path.join(nvidia.dirname, "driver.c")) as file:
                texts[file.read()] = "cuda_utils"
        return {"modules": [_c_module(text, name, job) for text, name in texts.items()]}

    def _launcher_text(self, record: Message) -> str:
        constants, signature = self._by_path(record["constants"]), self._by_name(record["signature"])
        described = self.decode(record["tensordesc"])
        if record["target"][0] == "cuda":
            from triton.backends.nvidia.driver import make_launcher

            return make_launcher(constants, signature, described)
        from triton.backends.amd.driver import make_launcher

        wants = make_launcher.__code__.co_varnames[: make_launcher.__code__.co_argcount]
        more = [described] if "tensordesc_meta" in wants else []
        return make_launcher(constants, signature, record["target"][2], *more)


# Functions of the capture file


class _Module:
    """A module of captured functions.

    They share their globals as they did in the program: the hash of a function has each constexpr of a module once.
    """

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": name, "__builtins__": _builtins()}
        self._encoded: dict[str, Any] = {}
        self._defined: dict[str, Any] = {}  # encoded values of the names that are defined

    def claim(self, encoded: dict[str, Any]) -> bool:
        """Reserve names for these values. Returns False if one of them has another value."""
        merged = dict(self._encoded)
        for name, value in encoded.items():
            if name in merged and (value := _merged(merged[name], value)) is _DIFFERENT:
                return False
            merged[name] = value
        self._encoded = merged
        return True

    def lacking(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the encoded values of those names that are not defined, or that lack attributes by now."""
        return {name: self._encoded[name] for name in names if self._defined.get(name, ...) != self._encoded[name]}

    def define(self, name: str, encoded: Any, value: Any) -> None:
        """Define a name, unless a function that was made meanwhile needed more attributes of it."""
        if self._encoded[name] == encoded:
            self.names[name], self._defined[name] = value, encoded


_DIFFERENT = object()


def _merged(one: Any, other: Any) -> Any:
    """Merge two records of a value. Each record of a module or class has the attributes that one function reads."""
    if one == other:
        return one
    if not (isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other) == ["namespace"]):
        return _DIFFERENT
    (name, attributes), (other_name, more) = one["namespace"], other["namespace"]
    shared = {key: _merged(attributes[key], value) if key in attributes else value for key, value in more.items()}
    if name != other_name or _DIFFERENT in shared.values():
        return _DIFFERENT
    return {"namespace": [name, {**attributes, **shared}]}


def _defined(record: Message, module: dict[str, Any], closure: dict[str, Any], file: str) -> Any:
    """Run the definition of a function and return the function. Nothing else is allowed in its source."""
    source, name = record["source"], record["name"]
    body = ast.parse(source).body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != name or body[0].decorator_list:
        raise RebuildError(f"the source of {name!r} is not the definition of this function alone")
    maker = ast.parse(f"def make({', '.join(closure)}): return {name}")
    maker.body[0].body.insert(0, body[0])  # type: ignore[attr-defined]
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    made: dict[str, Any] = {}
    exec(compile(maker, file, "exec", dont_inherit=True), module, made)
    function = made["make"](**closure)
    function.__module__, function.__qualname__ = record["module"], record["qualname"]
    return function


def _hash_without(function: Any, hidden: list[Any]) -> str:
    """Return the hash of a function as if those that are hidden had not been hashed before it."""
    values = [each.used_global_vals for each in hidden]
    function.hash = None
    try:
        for each in hidden:
            each.used_global_vals = {}
        return str(function.cache_key)
    finally:
        for each, used in zip(hidden, values):
            each.used_global_vals = used


def _of_type(record: Message, function: Any) -> Any:
    """Return the function as Triton's decorator, or the mark of a builtin, makes it."""
    from triton.experimental.gluon._runtime import GluonJITFunction
    from triton.language import core
    from triton.runtime import jit

    kinds = {
        "jit": lambda: jit.JITFunction(function, noinline=record["noinline"] or None),
        "gluon": lambda: GluonJITFunction(function, noinline=record["noinline"] or None),
        "builtin": lambda: core.builtin(function),
        "marked": lambda: function,
    }
    if hasattr(jit, "ConstexprFunction"):
        kinds["constexpr"] = lambda: jit.ConstexprFunction(function)
    if record["type"] not in kinds:
        raise RebuildError(f"this Triton has no functions of type {record['type']!r}")
    if record["type"] == "marked":
        function.__triton_builtin__ = True
    return kinds[record["type"]]()


def _builtins() -> dict[str, Any]:
    import builtins

    allowed = {name: value for name, value in vars(builtins).items() if name not in FORBIDDEN_BUILTINS}

    def import_known(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] not in ("math", "triton"):
            raise ImportError(f"captured functions import math and triton only, not {name}")
        return __import__(name, *arguments, **options)

    return dict(allowed, __import__=import_known)


def _functions_in(value: Any) -> list[str]:
    """Return the ids of functions in an encoded value."""
    found, waiting = [], [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            found += [name for tag, name in item.items() if tag == "function" and isinstance(name, str)]
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return found


# Triton's key


def _state_triton_key(text: str) -> None:
    import triton.compiler.compiler as compiler
    import triton.runtime.cache as cache

    for module in (cache, compiler):  # 3.4 has it in the compiler
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: text


def _state_root(here: str, root: str) -> None:
    """Hash options of HIP with the paths of the captured installation, where this Triton hashes paths."""
    from triton.backends.amd.compiler import HIPOptions

    hashed = HIPOptions.hash

    def stated(self: Any) -> Any:
        moved = object.__new__(type(self))
        libraries = tuple((name, path.replace(here, root)) for name, path in self.extern_libs)
        moved.__dict__.update(self.__dict__, extern_libs=libraries)
        try:
            return hashed(moved)
        except OSError:  # this Triton hashes the files, which are here
            return hashed(self)

    HIPOptions.hash = stated


_ENVIRONMENT: set[str] = set()


def _set_environment(variables: dict[str, str]) -> None:
    """Set the variables that a kernel was compiled with, and no others. Those that name files are refused."""
    for name in _ENVIRONMENT - set(variables):
        os.environ.pop(name, None)
    _ENVIRONMENT.clear()
    for name, value in variables.items():
        if "/" in value:
            raise RebuildError(f"it was compiled with {name}={value}: the file is not in the capture")
    before = dict(os.environ)
    os.environ.update(variables)
    if unknown := sorted(set(variables) - set(_key_environment())):
        os.environ.clear()
        os.environ.update(before)
        raise RebuildError(f"{unknown[0]} is not a variable that changes code of this Triton")
    _ENVIRONMENT.update(variables)


def _key_environment() -> dict[str, str]:
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return get_cache_invalidating_env_vars()


# Targets and launches


def _target(parts: list[Any]) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(*parts)


def _assume(target: Any) -> None:
    """Let kernels ask for their target while they are compiled, without a GPU."""
    from triton.runtime.driver import driver

    class Driver:
        def get_current_target(self) -> Any:
            return target

        def get_current_device(self) -> int:
            return 0

    driver.set_active(Driver())


def _with_pointer_ranges(
    signature: dict[str, Any], attributes: dict[tuple[int, ...], Any]
) -> dict[tuple[int, ...], Any]:
    """Mark tensors as smaller than 2 GB. HIP's launches measure this; CUDA's do not."""
    found = dict(attributes)

    def visit(kind: Any, path: tuple[int, ...]) -> None:
        if isinstance(kind, tuple):
            for place, item in enumerate(kind):
                visit(item, (*path, place))
        elif str(kind).startswith("*"):
            found[path] = [*found.get(path, []), ["tt.pointer_range", 32]]

    for place, kind in enumerate(signature.values()):
        visit(kind, (place,))
    return dict(sorted(found.items()))


def _arguments(signature: dict[str, Any], metadata: dict[str, Any]) -> Optional[list[list[str]]]:
    """Return (name, type) of each argument of a launch; None where this Triton does not say how it passes them."""
    described = metadata.get("tensordesc_meta")
    types = dict(signature)
    if any("tensordesc" in str(kind) for kind in types.values()):
        try:
            from triton.backends.driver import expand_signature
        except ImportError:
            return None
        types = {
            str(place): kind for place, kind in enumerate(expand_signature(types.values(), described, "nvTmaDesc"))
        }
    found = []

    def visit(name: str, kind: Any) -> None:
        if isinstance(kind, tuple):
            for place, item in enumerate(kind):
                visit(f"{name}.{place}", item)
        elif kind != "constexpr":
            found.append([name, str(kind)])

    for name, kind in types.items():
        visit(name, kind)
    return found


def _c_module(text: str, name: str, job: Message) -> Message:
    """Compile a C module and put it where Triton looks for it. Returns its folder and file."""
    from triton.runtime import build, cache

    here = str(triton_root())
    backend = "nvidia" if job["target"][0] == "cuda" else "amd"
    suffix = getattr(build, "platform_key", lambda: "")()
    manager = cache.get_cache_manager(hashlib.sha256((text + suffix).encode()).hexdigest())
    with tempfile.TemporaryDirectory() as folder:
        source, stub, made = (os.path.join(folder, file) for file in ("module.c", "libcuda.so.1", "module.so"))
        _write(source, text)
        links = []
        if backend == "nvidia":  # linked with the driver's library by name alone
            _write(os.path.join(folder, "empty.c"), "")
            _run_compiler(["-shared", "-Wl,-soname,libcuda.so.1", "-o", stub, os.path.join(folder, "empty.c")])
            links = ["-Wl,--no-as-needed", f"-L{folder}", "-l:libcuda.so.1"]
        include = os.path.join(here, "backends", backend, "include")
        _run_compiler(
            [source, "-O3", "-shared", "-fPIC", "-Wno-psabi", *links, f"-I{job['headers']}", f"-I{include}", "-o", made]
        )
        with open(made, "rb") as file:
            path = manager.put(file.read(), name + job["suffix"], binary=True)
    return {"folder": os.path.basename(os.path.dirname(path)), "files": [os.path.basename(path)]}


def _run_compiler(arguments: list[str]) -> None:
    compiler = os.environ.get("CC") or "cc"
    try:
        subprocess.run([compiler, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    except OSError as error:
        raise RebuildError(f"the C compiler {compiler!r} cannot be run: {error.strerror}") from None
    except subprocess.CalledProcessError:
        raise RebuildError(f"the C compiler {compiler!r} failed; are the headers of this Python version?") from None


# Lines in and out


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _reason(error: BaseException, records: Iterable[Message]) -> str:
    """Describe an exception of a compilation in a few lines, with the line of the kernel where Triton has it.

    `records` are the functions, by whose texts Triton names places.
    """
    lines: list[str] = []
    cause: Any = error
    while cause is not None and hasattr(cause, "error_message"):
        line, source = getattr(cause.node, "lineno", None), cause.src or ""
        record = next((record for record in records if record["source"] == source), None)
        message = cause.error_message or str(cause.__cause__ or "") or type(cause).__name__
        if line and record is not None and not record["module"].startswith("triton."):
            text = source.split("\n")[line - 1].strip()
            lines = [f"{record['file']}:{record['def_line'] + line - 1}: {message}", f"    {text}"]
        elif lines:
            lines[0] = lines[0].partition(": ")[0] + f": {message}"
        else:
            lines = [message]
        cause = cause.__cause__
    if not lines:
        said = str(error).strip().split("\n")[0]
        lines = [said if isinstance(error, (RebuildError, ValueDecodeError)) else f"{type(error).__name__}: {said}"]
    return "\n".join(lines)


def _describe(targets: list[list[Any]]) -> Message:
    """Describe this installation, for the builder to compare with the captured one."""
    import triton
    from triton.compiler.compiler import make_backend

    files, key_ok = files_of_key()
    return {
        "triton": triton.__version__,
        "files": files,
        "backends": [make_backend(_target(target)).hash() for target in targets],
        "key_ok": key_ok,
        "extension_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "headers": sysconfig.get_paths()["include"],
        "root": os.path.dirname(triton.__file__),
        "environment": _key_environment(),
    }


def _answer(job: Message, sessions: list[Session]) -> Message:
    """Answer a request. `sessions` is empty, or has the session."""
    kind = job.pop("kind")
    if kind == "describe":
        return _describe(job["targets"])
    if kind == "session":
        sessions[:] = [Session(**job)]
        return {}
    (session,) = sessions
    answer: Message = {"kernel": session.kernel, "autotune": session.autotune, "launchers": session.launchers}[kind](
        job
    )
    return answer


def _serve(folder: str) -> None:
    """Answer the requests on standard input. The output of compilers and of Python goes to files in the folder."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    native, python = (io.FileIO(os.path.join(folder, name), "w+") for name in ("native", "python"))
    for descriptor in (1, 2):
        os.dup2(native.fileno(), descriptor)
    sys.stdout = sys.stderr = io.TextIOWrapper(io.BufferedWriter(python), write_through=True)
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "cache")
    sessions: list[Session] = []
    for line in sys.stdin:
        for file in (native, python):
            file.seek(0)
            file.truncate()
        try:
            answer = _answer(json.loads(line), sessions)
        except BaseException as error:  # a function that is run while Triton compiles may as well exit
            records = [record for session in sessions for record in session.records.values()]
            answer = {"error": _reason(error, records), "traceback": traceback.format_exc()}
        answers.write(json.dumps({**answer, "native": _end_of(native), "python": _end_of(python)}) + "\n")


def _end_of(file: Any) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - PRINTED_BYTES))
    return str(file.read().decode(errors="replace"))


if __name__ == "__main__":
    _serve(sys.argv[1])
