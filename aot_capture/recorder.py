"""Notes kernels as Triton compiles them, through its listeners. The program sees nothing of it, nor of its failures."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

from . import records
from .compiling import Compilation, current_compilation
from .installation import installation, triton_key
from .launches import current_launch
from .names import names_in_defaults, names_read
from .values import Attributes, Encoder, functions_of_class, is_callable, is_marked


class Recorder:
    """Passes records of what this process compiles to `write`."""

    def __init__(
        self, write: Callable[[records.Record], None], keep_source: bool = True, inductor_warm: bool = False
    ) -> None:
        self._write = write
        self._keep_source = keep_source
        self._inductor_warm = inductor_warm
        self._written: set[str] = set()
        self._pid: Optional[int] = None  # of the process whose installation is noted
        self.renew_lock()
        self._encoder = Encoder(self.note_function, self.note_class)
        self._failed = False

    def renew_lock(self) -> None:
        """Make a new lock: in a forked process, whose parent may have held it in another thread."""
        self._lock = threading.RLock()

    def on_compile(self, *, src: Any, metadata: dict[str, Any], times: Any, cache_hit: bool, **_: Any) -> None:
        """Note a kernel: the listener of `triton.knobs.compilation`."""
        self._guarded(str(getattr(src, "name", src)), lambda: self._note_kernel(src, metadata, times, cache_hit))

    def on_autotune(
        self, *, fn: Any, key: Any, best_config: Any, configs_timings: Any, duration: Any, cache_hit: bool, **_: Any
    ) -> None:
        """Note an autotuner's choice: the listener of `triton.knobs.autotuning`."""

        def note() -> None:
            configs = [
                [
                    {name: self._encoder.encode(v) for name, v in vars(config).items() if name != "pre_hook"},
                    [float(t) for t in times] if isinstance(times, (list, tuple)) else [float(times)],
                    str(config),
                    bool(config.pre_hook),
                ]
                for config, times in configs_timings.items()
            ]
            self._write(
                records.Autotune(
                    function=self.note_function(fn),
                    name=fn.__name__,
                    key=self._encoder.encode(key),
                    best=str(best_config),
                    configs=configs,
                    duration_s=duration,
                    cache_hit=bool(cache_hit),
                )
            )

        self._guarded(str(getattr(fn, "__name__", fn)), note)

    def _guarded(self, name: str, note: Callable[[], None]) -> None:
        """Call `note`; a failure is noted in its place, and never reaches the program."""
        try:
            with self._lock:
                note()
        except Exception as error:
            try:
                reason = f"{type(error).__name__}: {error}"
                self._write(records.Unrecorded(name, reason[:2000], os.getpid()))
            except Exception as second:
                if not self._failed:
                    self._failed = True
                    print(f"aotbuild capture: {name} cannot be recorded: {second}", file=sys.stderr)

    def _note_kernel(self, src: Any, metadata: dict[str, Any], times: Any, cache_hit: bool) -> None:
        start = time.perf_counter()
        if not hasattr(src, "fn"):
            raise TypeError(f"compiled from the file {getattr(src, 'path', src)}, which has no Python function")
        if f"kernel {metadata['hash']}" in self._written:
            return
        compilation = current_compilation()
        if compilation is None:
            raise RuntimeError("Triton's compile() is not among the callers")
        if self._pid != os.getpid():
            self._write(installation(compilation.key[1], self._inductor_warm))
            self._pid = os.getpid()
        kernel = self.kernel(compilation, metadata["hash"])
        launch = current_launch(self._keep_source)
        if launch is not None:
            self._write(records.Launch(kernel=metadata["hash"], **launch))
        compile_us = times.ir_initialization + sum(duration for _, duration in times.lowering_stages)
        self._write(
            dataclasses.replace(
                kernel,
                symbol=metadata.get("name"),
                tensordesc=self._encoder.encode(metadata.get("tensordesc_meta")),
                cache_hit=bool(cache_hit),
                compile_s=compile_us / 1e6,
                record_s=round(time.perf_counter() - start, 6),
            )
        )
        self._written.add(f"kernel {metadata['hash']}")

    def kernel(self, compilation: Compilation, cache_hash: str) -> records.Kernel:
        """Return the record of a kernel before it is compiled, having noted its functions."""
        source, target, encode = compilation.source, compilation.target, self._encoder.encode
        key = compilation.key
        digest = hashlib.sha256("-".join([triton_key(), *key]).encode()).hexdigest()
        return records.Kernel(
            function=self.note_function(source.fn),
            name=source.name,
            symbol=None,
            language=source.language.name,
            hash=cache_hash,
            key=key,
            rederived=digest == cache_hash,
            environment=compilation.environment,
            target=[target.backend, target.arch, target.warp_size],
            signature={name: encode(value) for name, value in source.signature.items()},
            constants=[[list(path), encode(value)] for path, value in source.constants.items()],
            attributes=[[list(path), encode(value)] for path, value in source.attrs.items()],
            options={name: encode(value) for name, value in vars(compilation.options).items()},
            given={name: encode(value) for name, value in compilation.given.items()},
            tensordesc=None,
            cache_hit=False,
            compile_s=0.0,
            record_s=0.0,
            site=compilation.site,
            pid=os.getpid(),
        )

    def note_function(self, fn: Any) -> str:
        """Note a function and those that it calls; return its id."""
        if is_marked(fn):
            fn = _MarkedFunction(fn)
        inner = fn.fn
        name = f"{inner.__module__}:{inner.__qualname__}:{fn.starting_line_number}:{fn.cache_key[:12]}"
        if name in self._written:
            return name
        with self._noting(name):
            source, raw = fn.src, _raw_source(fn)
            self._write(
                records.Function(
                    id=name,
                    type=_type_of(fn),
                    module=inner.__module__,
                    qualname=inner.__qualname__,
                    name=fn.__name__,
                    file=inner.__code__.co_filename,
                    line=fn.starting_line_number,
                    def_line=_def_line(fn, raw),
                    source=source if self._keep_source else None,
                    raw_source=raw if self._keep_source else None,
                    source_sha256=hashlib.sha256(source.encode()).hexdigest(),
                    key=fn.cache_key,
                    noinline=bool(getattr(fn, "noinline", False)),
                    launch_metadata=bool(getattr(fn, "launch_metadata", None)),
                    refers=self._refers(fn, source),
                    closure=list(inner.__code__.co_freevars),
                    constexprs=constexprs_of_hash(fn),
                )
            )
        return name

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Take a function or class as noted, since it may refer to itself, unless that fails."""
        self._written.add(name)
        try:
            yield
        except BaseException:
            self._written.discard(name)
            raise

    def _refers(self, fn: Any, source: str) -> dict[str, Any]:
        scope, code = _scope(fn.fn), fn.fn.__code__
        parameters = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        in_defaults = names_in_defaults(source, fn.fn)
        return {
            name: self._reference(scope[name], attributes, in_defaults.get(name, {}))
            for name, attributes in names_read(source, parameters).items()
            if name in scope and scope[name] is not fn and not _is_unread_function(scope[name])
        }

    def _reference(self, value: Any, attributes: Attributes, in_defaults: Attributes) -> Any:
        """Encode the value of a name, which may be a variable of the script that merely shares a local name.

        Attributes of an object of the program are read if the default of a parameter reads them.
        """
        try:
            return self._encoder.encode_object(value, attributes, in_defaults)
        except Exception as error:
            if is_callable(value):
                raise
            return {"opaque": [type(value).__qualname__, f"{type(error).__name__}: {error}"[:200]]}

    def note_class(self, kind: type) -> str:
        """Note an aggregate class, with its methods; return its id."""
        methods = {**functions_of_class(kind), **_functions_by_name(getattr(kind, "hash_attrs", ()))}
        annotations = _annotations(kind)
        text = str(annotations) + "".join(f"{n} {method.cache_key}" for n, method in sorted(methods.items()))
        name = f"{kind.__module__}:{kind.__qualname__}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if name not in self._written:
            with self._noting(name):
                encode = self._encoder.encode
                self._write(
                    records.Aggregate(
                        id=name,
                        module=kind.__module__,
                        qualname=kind.__qualname__,
                        annotations={n: encode(t) for n, t in annotations.items()},
                        defaults={n: encode(v) for n, v in getattr(kind, "__aggregate_defaults__", {}).items()},
                        methods={n: encode(method) for n, method in methods.items()},
                    )
                )
        return name


class _MarkedFunction:
    """A Python function that is marked as a builtin of Triton, with the attributes of Triton's own functions."""

    def __init__(self, function: Any) -> None:
        import inspect

        self.type = "builtin" if hasattr(function, "__wrapped__") else "marked"
        self.fn = inspect.unwrap(function)
        self.raw_src, self.starting_line_number = inspect.getsourcelines(self.fn)
        text = textwrap.dedent("".join(self.raw_src))
        self.src = text[re.search(r"^def\s", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
        self.cache_key = hashlib.sha256(self.src.encode()).hexdigest()
        self.__name__ = self.fn.__name__


def _is_unread_function(value: Any) -> bool:
    """Return True for a function that Triton has not read for this kernel's key.

    Reading it would fix the values of its globals before the program launches it.
    """
    return is_callable(value) and getattr(getattr(value, "__func__", value), "hash", "") is None


def _scope(function: Any) -> dict[str, Any]:
    """Return the variables that a function may read: its module's, and those that it closes over."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # not assigned yet
            scope[name] = cell.cell_contents
    return scope


def constexprs_of_hash(fn: Any) -> list[list[str]]:
    """Return name and text of the constexprs that the hash of a function holds."""
    from triton.language import constexpr

    used = getattr(fn, "used_global_vals", {})
    return [[name, str(value)] for (name, _), (value, _) in used.items() if isinstance(value, constexpr)]


def _type_of(fn: Any) -> str:
    from triton.runtime.jit import JITFunction

    if isinstance(fn, _MarkedFunction):
        return fn.type
    if not isinstance(fn, JITFunction):
        return "constexpr"
    return "gluon" if fn.is_gluon() else "jit"


def _def_line(fn: Any, raw: str) -> int:
    known = getattr(fn, "def_file_line_number", None)
    if known is not None:
        return int(known)
    above = next((n for n, line in enumerate(raw.splitlines()) if line.lstrip().startswith("def ")), 0)
    return int(fn.starting_line_number) + above


def _raw_source(fn: Any) -> str:
    if hasattr(fn, "raw_src"):
        return "".join(fn.raw_src)
    import inspect

    return inspect.getsource(fn.fn)


def _annotations(kind: Any) -> dict[str, Any]:
    """Return the fields of an aggregate class. Triton before 3.8 keeps them in the class that it was made of."""
    made = kind.__new__
    of_closure = dict(zip(made.__code__.co_freevars, made.__closure__ or ()))
    return dict(getattr(kind, "__annotations__", {}) or of_closure["cls"].cell_contents.__annotations__)


def _functions_by_name(functions: Any) -> dict[str, Any]:
    return {f.__name__: f for f in functions if hasattr(f, "cache_key")}
