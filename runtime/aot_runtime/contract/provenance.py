"""The provenance of a bundle: its inputs and its builder, as a SLSA provenance v1 predicate.

The JSON has SLSA's names. The time and place of the build are left out, so that equal inputs give equal bytes.
"""

from __future__ import annotations

import msgspec

from aot_runtime.errors import BundleError

from .records import INDEX, NO_PROVENANCE, Index

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:aotbuild:build:1"
BUILDER = "urn:aotbuild:builder"
SOURCE_CLOSURE = "sourceClosure"
"""Name of the digest of all source text, in any file, that a kernel depends on."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of the records of provenance."""


class Resource(_Part, frozen=True):
    """An input of a build: a file, a kernel or a package.

    Attributes:
        name: path of a file from the project root, or a kernel in a file: `kernels/x.py:kernel`.
        uri: URL of a package (purl).
        digest: algorithm → hex digits.
    """

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}


class BuildDefinition(_Part, frozen=True):
    """The inputs of a build.

    Attributes:
        external_parameters: the command's `manifest`, `arch`, `filter`, `lineInfo`, `for`, `neighbours` and `add`.
    """

    build_type: str
    external_parameters: dict[str, str | bool]
    resolved_dependencies: tuple[Resource, ...]


class Builder(_Part, frozen=True):
    """The builder. `version`: component → version."""

    id: str
    version: dict[str, str]


class RunDetails(_Part, frozen=True):
    """The run of a build."""

    builder: Builder


class Provenance(_Part, frozen=True):
    """A predicate of type `PREDICATE_TYPE`."""

    build_definition: BuildDefinition
    run_details: RunDetails


def decode_provenance(index: Index) -> Provenance | None:
    """Return a bundle's provenance, or None if it was not recorded. Raises `BundleError` if it is malformed."""
    if not bytes(index.provenance):
        return None
    try:
        return msgspec.json.decode(index.provenance, type=Provenance)
    except msgspec.MsgspecError as error:
        raise BundleError(f"the provenance in {INDEX} is malformed: {error}") from None


def encode_provenance(provenance: Provenance | None) -> msgspec.Raw:
    """Return a provenance as canonical JSON, for `Index.provenance`."""
    return NO_PROVENANCE if provenance is None else msgspec.Raw(msgspec.json.encode(provenance, order="deterministic"))
