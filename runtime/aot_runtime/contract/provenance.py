"""The inputs and tools of a build, as SLSA's provenance predicate, version 1. The JSON has SLSA's names.

It has no time and no place of the build, so equal inputs give equal bytes.
"""

from __future__ import annotations

import msgspec

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:aotbuild:build:1"
BUILDER = "urn:aotbuild:builder"
SOURCE_CLOSURE = "sourceClosure"
"""The name of the digest of all source text that a kernel's code depends on, across files."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of the records of provenance."""


class Resource(_Part, frozen=True):
    """An input of a build.

    Attributes:
        name: a file's path from the project root, or a kernel in one: `kernels/x.py:kernel`.
        uri: of a package, its package URL.
        digest: algorithm → hex digits.
    """

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}


class BuildDefinition(_Part, frozen=True):
    """The inputs of a build. `external_parameters` are the command's: `manifest`, `arch`, `filter`, `lineInfo`,
    `for`, `neighbours` and `add`."""

    build_type: str
    external_parameters: dict[str, str | bool]
    resolved_dependencies: tuple[Resource, ...]


class Builder(_Part, frozen=True):
    """The program that ran the build. `version` maps components to versions."""

    id: str
    version: dict[str, str]


class RunDetails(_Part, frozen=True):
    """The run of a build."""

    builder: Builder


class Provenance(_Part, frozen=True):
    """A predicate of the type `PREDICATE_TYPE`."""

    build_definition: BuildDefinition
    run_details: RunDetails
