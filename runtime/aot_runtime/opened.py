"""An open bundle: its ops are called like functions; code objects are loaded when a call first needs them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_runtime.bundle.files import Place, Source, bundles_in, open_place, source_of
from aot_runtime.bundle.multi_archive import MultiArchive
from aot_runtime.bundle.reading import read_blob
from aot_runtime.by_name import choose_device, choose_installed, hold_to_version, not_there, version_clauses
from aot_runtime.call.documentation import bundle_help, bundle_html, bundle_title
from aot_runtime.call.op import build_op
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.call.recording import record_by_environment
from aot_runtime.contract.names import TYPE_NAME, TYPE_OPS
from aot_runtime.contract.records import INDEX, Index, Op, Variant
from aot_runtime.contract.versions import Clause, meets
from aot_runtime.device.code import Code
from aot_runtime.device.device import Device
from aot_runtime.device.identity import Shared
from aot_runtime.errors import ArchMismatchError, ArgumentError, BundleError
from aot_runtime.installed import installed_bundles, is_name
from aot_runtime.logs import log
from aot_runtime.trust.reader import index_reader, named_lock

if TYPE_CHECKING:
    from aot_runtime.call.selftests import Report
    from aot_runtime.trust.lock import Lock
    from aot_runtime.trust.policy import TrustPolicy

CHECK_VARIABLE = "AOTBUILD_CHECK_CONTENTS"
"""Set to 1, it has the contents of integer tensors on the device checked."""


class OpenBundle(Shared):
    """An open bundle on one device: its ops are attributes, and are called like functions.

    Code objects are loaded when first called. They are unloaded once the bundle, its ops and the graphs of their calls
    are gone, and the work that was launched is done. Thread-safe.

    This class has what every bundle has, whatever its ops: a type of one bundle derives from it (`aotbundle stubs`).
    """

    _instead = "; open it again from its path"

    def __init__(self, place: Place, index: Index, device: Device, check_contents: bool = False):
        self._source = source_of(place)
        self.path, self.index, self.device = self._source.path, index, device
        self.__doc__ = bundle_help(index, f"{self.path} on {device}")
        self._check_contents = check_contents
        self._lock = threading.RLock()
        self._built: dict[str, Callable[..., Any]] = {}
        self._code = Code(device, self._image, self._image_path)

    def __repr__(self) -> str:
        return f"<bundle {bundle_title(self.index)} on {self.device}: {', '.join(self.ops)}>"

    def _repr_html_(self) -> str:
        return bundle_html(self.index, str(self.device))

    @property
    def name(self) -> str:
        """What the manifest calls the bundle."""
        return self.index.name

    @property
    def version(self) -> str | None:
        """The version that the manifest gives the bundle; None where it gives none."""
        return self.index.version or None

    @property
    def arch(self) -> str:
        """The architecture that the bundle is for."""
        return self.index.target.arch

    @property
    def id(self) -> str:
        """64 hex digits, which differ wherever anything in two bundles does."""
        return self.index.id

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the ops."""
        return tuple(op.name for op in self.index.ops)

    @cached_property
    def _contracts(self) -> dict[str, Op]:
        return {op.name: op for op in self.index.ops}

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.ops]

    if not TYPE_CHECKING:  # types know the ops of a bundle

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if "index" not in self.__dict__:
                raise AttributeError(f"a bundle that is not open has no '{name}'")
            try:
                op = self[name]
            except KeyError as error:
                raise AttributeError(*error.args) from None
            self.__dict__[name] = op  # found with no call of this method from then on
            return op

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """An op by its name, also where an attribute that all bundles have is called so. Raises KeyError."""
        function = self._built.get(op)
        if function is not None:
            return function
        if op not in self._contracts:
            from aot_runtime.contract.expressions import nearest

            raise KeyError(f"bundle '{self.index.name}' has no op '{op}'{nearest(op, self.ops)}")
        with self._lock:
            if op not in self._built:
                self._built[op] = self._build(op)
            return self._built[op]

    def __iter__(self) -> Iterator[str]:
        """The names of the ops."""
        return iter(self.ops)

    def _build(self, op: str) -> Callable[..., Any]:
        title = f"bundle {bundle_title(self.index)}"
        return build_op(self._planner(op), self.device, self._code, self._check_contents, title)

    def _planner(self, name: str) -> Planner:
        return op_planner(self.index, name, self.path)

    def load(self, variant: Variant) -> int:
        """The driver's handle of a variant's kernel, which is good as long as the bundle, or one of its ops, is there.
        Raises, now and at each further try, when it cannot be loaded."""
        return self._code(variant)

    def _image(self, code: str) -> bytes:
        return read_blob(self._source, self.index.blobs[code], self.index.target.arch)

    def _image_path(self, code: str) -> Path:
        return self.path / self.index.blobs[code].file

    def preload(self) -> int:
        """Load every code object now; returns how many kernels are loaded."""
        for variant in self.index.variants:
            self.load(variant)
        return len(self._code)

    def explain(self, op: str, /, *arguments: Any, **keywords: Any) -> str:
        """Which variant a call with these arguments would get, and why; nothing is launched."""
        from aot_runtime.call.explanation import explain_call

        return explain_call(self[op], self.device, self.index.blobs, arguments, keywords)

    def selftest(self, *ops: str) -> Report:
        """Compare the calls whose results the bundle has with what the device makes of them; of some ops, or of all.

        Raises `NoVectorsError` where the bundle has none, `BundleError` for vectors that were altered.
        """
        from aot_runtime.call.selftests import run_selftest

        return run_selftest(self, *ops)


class Bundle(OpenBundle):
    """An open bundle on one device: its ops are attributes, and are called like functions. See `OpenBundle`."""

    if TYPE_CHECKING:  # where its own type is not known any name may be an op

        def __getattr__(self, name: str) -> Callable[..., Any]: ...


def open_folder(
    path: str | Path,
    device: Device | str | None,
    kind: type | None,
    check_contents: bool | None,
    trust: TrustPolicy | str | os.PathLike[str] | None,
    version: str | None = None,
    lock: Lock | str | os.PathLike[str] | None = None,
) -> OpenBundle:
    """Open a bundle: see `opening.open_bundle`."""
    opened = _opened_class(kind)
    folder = Path(path)
    installed = installed_bundles(str(path)) if is_name(path) else []
    read, clauses, locked = index_reader(trust), version_clauses(version), named_lock(lock)
    if installed:
        source, index, chosen = choose_installed(installed, device, clauses, locked, read)
        folder = source.path
    elif not os.path.lexists(folder / INDEX) and folder.is_dir():
        folder, index, chosen = _choose(folder, device, getattr(kind, TYPE_NAME, None), read, clauses)
        source = source_of(folder)
    elif is_name(path) and not folder.exists():
        raise not_there(folder.name)
    else:
        source, fitting = _source_for(folder, device)
        folder = source.path
        index = read(source)
        what = f"bundle {folder} is for {index.target.arch}"
        chosen = fitting or choose_device(device, (index.target.arch,), what)
    if index.target.arch != chosen.arch:
        raise ArchMismatchError(
            f"bundle {folder} is for {index.target.arch}, but {chosen} ({chosen.properties.name}) is {chosen.arch}"
        )
    hold_to_version(index, clauses, folder)
    if locked:
        locked.hold(index, folder)
    if check_contents is None:
        check_contents = os.environ.get(CHECK_VARIABLE, "") not in ("", "0")
    _hold_to_type(folder, index, kind)
    log("opened %s, id %s, on %s", folder, index.id, chosen)
    record_by_environment()
    return opened(source, index, chosen, check_contents)


def _source_for(path: Path, device: Device | str | None) -> tuple[Source, Device | None]:
    """(the bundle at a path, the device to open it on); None where only the bundle's index tells that. Of a file with
    bundles for several architectures, the bundle for the device's."""
    found = open_place(path)
    if not isinstance(found, MultiArchive):
        return found, None
    there = f"{path} has bundles for {', '.join(found.archs)}"
    chosen = choose_device(device, found.archs, there)
    if chosen.arch not in found.archs:
        raise ArchMismatchError(f"{there}, but {chosen} ({chosen.properties.name}) is {chosen.arch}")
    return found.part(chosen.arch), chosen


@cache
def _opened_class(kind: type | None) -> type[OpenBundle]:
    """The class of what is opened as a type: both the type, which has no code, and a bundle."""
    if kind is None or kind in (Bundle, OpenBundle):
        return Bundle
    if not hasattr(kind, TYPE_NAME):
        raise ArgumentError(f"type is {kind!r}; the class of a bundle is allowed, which `aotbundle stubs` writes")
    return type(kind.__name__, (kind, Bundle), {"__module__": kind.__module__, "__doc__": OpenBundle.__doc__})


def _hold_to_type(folder: Path, index: Index, kind: type | None) -> None:
    """Raise `ArgumentError` where a bundle is not the one that a type is of, or has not all of its ops."""
    name = getattr(kind, TYPE_NAME, index.name)
    if name != index.name:
        raise ArgumentError(f"{folder} is bundle '{index.name}', and the type {kind} is that of bundle '{name}'")
    missing = sorted({*getattr(kind, TYPE_OPS, ())} - {op.name for op in index.ops})
    if missing:
        raise ArgumentError(f"bundle {folder} was built without {', '.join(missing)}, which the type {kind} has")


def _choose(
    folder: Path,
    device: Device | str | None,
    name: str | None,
    read: Callable[[Place], Index],
    clauses: tuple[Clause, ...],
) -> tuple[Path, Index, Device]:
    """Of a folder of bundles, the one that fits the device, and has a name where that is given, and a version; by
    default the first device that some bundle fits. `read` reads an index."""
    found = _distinct({candidate: read(candidate) for candidate in bundles_in(folder)})
    if name is not None:
        found = {candidate: index for candidate, index in found.items() if index.name == name} or found
    found = {candidate: index for candidate, index in found.items() if meets(index.version, clauses)} or found
    there = ", ".join(f"{candidate.name} ({index.target.arch})" for candidate, index in found.items()) or "none"
    archs = dict.fromkeys(index.target.arch for index in found.values())
    chosen = choose_device(device, archs, f"{folder} has bundles {there}")
    matching = [candidate for candidate, index in found.items() if index.target.arch == chosen.arch]
    if len(matching) == 1:
        return matching[0], found[matching[0]], chosen
    if not matching:
        kind = ArchMismatchError if found else BundleError
        raise kind(f"{folder} has no bundle for {chosen.arch} ({chosen}); there: {there}")
    raise ArgumentError(f"{folder} has several bundles for {chosen.arch}; open one of them by name; there: {there}")


def _distinct(found: dict[Path, Index]) -> dict[Path, Index]:
    """Without the archives of bundles that are there as a folder, or in another archive, too."""
    kept = {candidate: index for candidate, index in found.items() if candidate.is_dir()}
    seen = {index.id for index in kept.values()}
    for candidate, index in found.items():
        if index.id not in seen:
            kept[candidate] = index
            seen.add(index.id)
    return kept
