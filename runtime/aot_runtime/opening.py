"""Open bundles and call their ops like functions. An op's code is loaded on its first call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.call.documentation import bundle_help, bundle_title
from aot_runtime.call.op import build_op
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.call.recorder import RECORD_VARIABLE
from aot_runtime.contract.names import TYPE_NAME, TYPE_OPS
from aot_runtime.contract.records import Index, Op, Variant
from aot_runtime.device.code import Code
from aot_runtime.device.device import Device
from aot_runtime.device.uncopyable import Shared
from aot_runtime.errors import ArgumentError
from aot_runtime.logs import log
from aot_runtime.selection import Reader, select_bundle
from aot_runtime.trust import VARIABLE as TRUST_VARIABLE

if TYPE_CHECKING:
    from aot_runtime.bundle.source import Place
    from aot_runtime.call.selftests import Report
    from aot_runtime.trust.policy import TrustPolicy

CHECK_VARIABLE = "AOTBUILD_CHECK_CONTENTS"
"""Environment variable: 1 turns on checks of the contents of integer tensors on the device."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    _B = TypeVar("_B", bound="OpenBundle", default="Bundle")


def open_bundle(
    path: str | Path,
    device: Device | str | None = None,
    *,
    type: type[_B] | None = None,
    check_contents: bool | None = None,
    trust: TrustPolicy | str | Path | None = None,
    version: str | None = None,
    id: str | None = None,
) -> _B:
    """Open a bundle on a device.

    Args:
        path: one of
            - a bundle's folder, or the archive that `aotbundle pack` made of it;
            - a folder of bundles, or the archive that `aotbundle merge` made for several architectures: the bundle for
              the device's architecture is opened;
            - the name of an installed bundle (see `aotbundle wheel`), if no bundle has that path. A `Path`, or a
              string with a slash such as `./rows`, is never taken as a name.
        device: a `Device` or its name (`hip:0`, `cuda:1`). A driver's name alone (`hip`) selects that driver's first
            device that fits the bundle. Defaults to the first such GPU of any driver.
        type: the bundle's class from a module that `aotbundle stubs` wrote, for editors and type checkers: an instance
            of it is returned. In a folder of bundles, it also selects the bundle by name.
        check_contents: before each call, copy integer tensors from the device and check their contents (offsets, block
            tables, lengths), as is always done for numpy arrays. Defaults to AOTBUILD_CHECK_CONTENTS (off).
        trust: a trust policy, or the path of a policy file, that lists the accepted signers. Defaults to the file in
            AOTBUNDLE_TRUST. Without a policy, signatures are ignored.
        version: conditions on the bundle's version, in the syntax of Python packages: `>=1.2,<2`.
        id: the bundle's id, 64 hex digits as `aotbundle show` prints them. It pins the bundle's whole contents.

    Raises:
        BundleError: the bundle is missing or damaged, or its id is not `id`.
        TrustError: the policy does not accept the bundle's signature. The index was not decoded.
        VersionMismatchError: the bundle has no version, or one that does not meet `version`.
        ArchMismatchError: the bundle was built for a different architecture.
        ArgumentError: several bundles fit, or the bundle is not `type`'s or lacks one of its ops.
        DeviceError: the device does not exist.

    Examples:
        >>> from aot_runtime import open_bundle
        >>> attention = open_bundle("dist/attention-gfx942")
        >>> out = attention.flash_attention(q, k, v, causal=True)

        On the second GPU, a pinned bundle, and one by name and version:

        >>> attention = open_bundle("dist/attention-gfx942", "hip:1", id="3f0c…")
        >>> rows = open_bundle("rows", version=">=1.2,<2")
    """
    opened = _opened_class(type)  # type: ignore[arg-type]  # a class is hashable
    source, index, chosen = select_bundle(
        path, device, _reader(trust), name=getattr(type, TYPE_NAME, None), version=version, id=id
    )
    if check_contents is None:
        check_contents = os.environ.get(CHECK_VARIABLE, "") not in ("", "0")
    _check_type(source.path, index, type)
    log("opened %s, id %s, on %s", source.path, index.id, chosen)
    if RECORD_VARIABLE in os.environ:
        from aot_runtime.call.recording import record_by_environment

        record_by_environment()
    return opened(source, index, chosen, check_contents)


def _reader(trust: TrustPolicy | str | Path | None) -> Reader:
    if trust is None and TRUST_VARIABLE not in os.environ:
        return read_index
    from aot_runtime.trust.reader import index_reader

    return index_reader(trust)


@cache
def _opened_class(kind: Any) -> Any:
    if kind is None or kind in (Bundle, OpenBundle):
        return Bundle
    if not hasattr(kind, TYPE_NAME):
        raise ArgumentError(f"type is {kind!r}; allowed is a bundle's class, as `aotbundle stubs` writes it")
    return type(kind.__name__, (kind, Bundle), {"__module__": kind.__module__, "__doc__": OpenBundle.__doc__})


def _check_type(folder: Path, index: Index, kind: type | None) -> None:
    name = getattr(kind, TYPE_NAME, index.name)
    if name != index.name:
        raise ArgumentError(f"{folder} is bundle '{index.name}', but {kind} is the type of bundle '{name}'")
    missing = sorted({*getattr(kind, TYPE_OPS, ())} - {op.name for op in index.ops})
    if missing:
        raise ArgumentError(f"bundle {folder} was built without {', '.join(missing)}, which the type {kind} has")


class OpenBundle(Shared):
    """An open bundle on one device: its ops are attributes, and are called like functions.

    A code object is loaded on the first call that needs it. It is unloaded once the bundle, its ops and the graphs
    that captured them are gone and the launched work has finished. Thread-safe.

    Types generated by `aotbundle stubs` derive from this class.

    Examples:
        >>> rows = open_bundle("dist/rows-gfx942")
        >>> rows.ops
        ('softmax', 'rms_norm')
        >>> y = rows.softmax(x)
        >>> print(rows.explain("softmax", x))
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
        from aot_runtime.call.display import bundle_html

        return bundle_html(self.index, str(self.device))

    @property
    def name(self) -> str:
        """The bundle's name, from its manifest."""
        return self.index.name

    @property
    def version(self) -> str | None:
        """The bundle's version, from its manifest, or None."""
        return self.index.version or None

    @property
    def arch(self) -> str:
        """The architecture of the bundle's code, such as `gfx942`."""
        return self.index.target.arch

    @property
    def id(self) -> str:
        """64 hex digits: a hash of everything in the bundle."""
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

    if not TYPE_CHECKING:  # generated types declare the ops

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if "index" not in self.__dict__:
                raise AttributeError(f"a bundle that is not open has no '{name}'")
            try:
                op = self[name]
            except KeyError as error:
                raise AttributeError(*error.args) from None
            self.__dict__[name] = op  # later look-ups bypass this method
            return op

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """Return an op by name, even one named like an attribute of this class. Raises KeyError."""
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
        """Iterate over the names of the ops."""
        return iter(self.ops)

    def _build(self, op: str) -> Callable[..., Any]:
        title = f"bundle {bundle_title(self.index)}"
        return build_op(self._planner(op), self.device, self._code, self._check_contents, title)

    def _planner(self, name: str) -> Planner:
        return op_planner(self.index, name, self.path)

    def load(self, variant: Variant) -> int:
        """Return the driver's handle of a variant's kernel, valid while the bundle or one of its ops exists.

        Raises `BundleError` if the code is damaged and `DriverCallError` if the driver refuses it.
        """
        return self._code(variant)

    def _image(self, code: str) -> bytes:
        return read_blob(self._source, self.index.blobs[code], self.index.target.arch)

    def _image_path(self, code: str) -> Path:
        return self.path / self.index.blobs[code].file

    def preload(self) -> int:
        """Load every code object now. Returns the number of loaded kernels."""
        for variant in self.index.variants:
            self.load(variant)
        return len(self._code)

    def explain(self, op: str, /, *arguments: Any, **keywords: Any) -> str:
        """Explain which variant a call with these arguments would launch, and why. Launches nothing."""
        from aot_runtime.call.explanation import explain_call

        return explain_call(self[op], self.device, self.index.blobs, arguments, keywords)

    def selftest(self, *ops: str) -> Report:
        """Run the bundle's recorded calls on the device and compare the results. Defaults to all ops.

        Raises `NoVectorsError` if the bundle has no recorded calls, `BundleError` if they were altered.
        """
        from aot_runtime.call.selftests import run_selftest

        return run_selftest(self, *ops)


class Bundle(OpenBundle):
    """An open bundle on one device: its ops are attributes, and are called like functions. See `OpenBundle`."""

    if TYPE_CHECKING:  # without a generated type, any name may be an op

        def __getattr__(self, name: str) -> Callable[..., Any]: ...
