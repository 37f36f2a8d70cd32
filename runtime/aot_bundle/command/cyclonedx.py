"""Write a bundle's bill of materials in CycloneDX JSON 1.6: the shipped files and their sources.

The text is reproducible: it has no timestamp, and its serial number is derived from the bundle's id.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from typing import Literal

import msgspec

from aot_bundle.coverage import MAX_TEXT_BYTES, generated_files
from aot_runtime import __version__
from aot_runtime.bundle.files import unreadable
from aot_runtime.bundle.reading import read_index_bytes
from aot_runtime.bundle.source import Source
from aot_runtime.contract.provenance import SOURCE_CLOSURE
from aot_runtime.contract.records import INDEX, Index

from .origin import PYPI, Origin, origin_of

_DIGITS = re.compile(r"[0-9a-f]{64}")
_PACKAGE_URL = re.compile(r"pkg:[a-z]+/[A-Za-z0-9._-]+@[A-Za-z0-9.+!_-]+")
_BUNDLE = "bundle"
"""Reference to the bundle within the bill."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base class of the parts of a bill."""


class Hash(_Part, frozen=True):
    """A hash of a file."""

    alg: str
    content: str


class Property(_Part, frozen=True):
    """A property without a field in CycloneDX."""

    name: str
    value: str


class Component(_Part, frozen=True):
    """A shipped component, or one used to build it (scope `excluded`). Others refer to it by `ref`."""

    type: Literal["library", "application", "file", "data"]
    name: str
    ref: str = msgspec.field(default="", name="bom-ref")
    version: str = ""
    scope: str = ""
    hashes: tuple[Hash, ...] = ()
    purl: str = ""
    properties: tuple[Property, ...] = ()


class Dependency(_Part, frozen=True):
    """The parts or sources of a component."""

    ref: str
    depends_on: tuple[str, ...] = ()


class Tools(_Part, frozen=True):
    """The tools that wrote the bill."""

    components: tuple[Component, ...]


class Metadata(_Part, frozen=True):
    """The subject of the bill and the tools that wrote it."""

    tools: Tools
    component: Component


class Bill(_Part, frozen=True):
    """A bill of materials."""

    bom_format: str
    spec_version: str
    serial_number: str
    version: int
    metadata: Metadata
    components: tuple[Component, ...]
    dependencies: tuple[Dependency, ...]


def bill_of(source: Source, index: Index) -> str:
    """Return the bill of a bundle as text. Raises `BundleError` if a file cannot be read."""
    origin = origin_of(index)
    shipped = [_index(source), *_code(index), *_vectors(index), *_generated(source, index)]
    used = [*_sources(origin), *_packages(origin)] if origin else []
    components = {component.ref: component for component in (*shipped, *used)}
    needs = {_BUNDLE: [component.ref for component in shipped], **_made_of(index, origin)}
    bill = Bill(
        bom_format="CycloneDX",
        spec_version="1.6",
        serial_number=f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'urn:aotbuild:bundle:{index.id}')}",
        version=1,
        metadata=Metadata(Tools((Component("application", "aotbundle", version=__version__),)), _bundle(index, origin)),
        components=tuple(components.values()),
        dependencies=tuple(Dependency(ref, tuple(dict.fromkeys(needs.get(ref, ())))) for ref in (_BUNDLE, *components)),
    )
    return msgspec.json.format(msgspec.json.encode(bill), indent=2).decode() + "\n"


def _bundle(index: Index, origin: Origin | None) -> Component:
    said = {"id": index.id, "arch": index.target.arch}
    if origin:
        said |= {"manifest": origin.manifest, "command": origin.command}
    return Component("library", index.name, _BUNDLE, index.version, properties=_properties(said))


def _index(source: Source) -> Component:
    return Component("file", INDEX, INDEX, scope="required", hashes=_hashes(_sha256(read_index_bytes(source))))


def _code(index: Index) -> Iterator[Component]:
    for blob in index.blobs.values():
        size = _properties({"size": str(blob.size)})
        yield Component("file", blob.file, blob.file, scope="required", hashes=_hashes(blob.sha256), properties=size)


def _vectors(index: Index) -> Iterator[Component]:
    for case in index.selftest:
        file = case.vectors.file
        yield Component("data", file, file, scope="optional", hashes=_hashes(case.vectors.sha256))


def _generated(source: Source, index: Index) -> Iterator[Component]:
    for file in generated_files(index):
        try:
            content = source.read(file, MAX_TEXT_BYTES)
        except FileNotFoundError:  # generated files are optional
            continue
        except OSError as error:
            raise unreadable("", source.path / file, error) from None
        yield Component("file", file, file, scope="optional", hashes=_hashes(_sha256(content)))


def _sources(origin: Origin) -> Iterator[Component]:
    for item in origin.files:
        yield Component(
            "file", item.name, _source(item.name), scope="excluded", hashes=_hashes(item.digest.get("sha256", ""))
        )
    for item in origin.kernels:
        closure = _properties({SOURCE_CLOSURE: item.digest[SOURCE_CLOSURE]})
        yield Component("library", item.name, _source(item.name), scope="excluded", properties=closure)


def _packages(origin: Origin) -> Iterator[Component]:
    urls = [f"{PYPI}{tool.replace(' ', '@')}" for tool in origin.tools]
    for url in (*urls, *(package.uri for package in origin.packages)):
        name, _, version = url.rpartition("/")[2].partition("@")
        yield Component(
            "application", name, _package(url), version, "excluded", purl=url if _PACKAGE_URL.fullmatch(url) else ""
        )


def _source(name: str) -> str:
    return f"source/{name}"


def _package(url: str) -> str:
    return f"package/{url}"


def _made_of(index: Index, origin: Origin | None) -> dict[str, list[str]]:
    """Return the sources of each component: kernels and compilers of a code object, and the file of a kernel."""
    if origin is None:
        return {}
    kernels: dict[str, list[str]] = {}
    made: dict[str, list[str]] = {}
    files = {item.name for item in origin.files}
    for item in origin.kernels:
        file, _, function = item.name.rpartition(":")
        kernels.setdefault(function, []).append(_source(item.name))
        made[_source(item.name)] = [_source(file)] if file in files else []
    compilers = [_package(package.uri) for package in origin.packages]
    for variant in index.variants:
        code = made.setdefault(index.blobs[variant.code].file, [*compilers])
        code += kernels.get(variant.symbol, [])
    return made


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hashes(sha256: str) -> tuple[Hash, ...]:
    """Return a SHA-256 as hashes; empty if malformed, since a bundle's provenance is untrusted."""
    return (Hash("SHA-256", sha256),) if _DIGITS.fullmatch(sha256) else ()


def _properties(said: dict[str, str]) -> tuple[Property, ...]:
    return tuple(Property(f"aotbuild:{name}", value) for name, value in said.items())
