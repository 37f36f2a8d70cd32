"""What a bundle was made of, and by what: the predicate of SLSA's provenance, version 1, with SLSA's names in the JSON.

It says nothing of when or where a build ran, so that the same inputs give the same bytes.
"""

from __future__ import annotations

import msgspec

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:aotbuild:build:1"
BUILDER = "urn:aotbuild:builder"
SOURCE_CLOSURE = "sourceClosure"
"""The digest of all source text that a kernel's code depends on, over all files that it is in."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of what provenance consists of."""


class Resource(_Part, frozen=True):
    """Something that a build read.

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
    """What ran it. `version`: component → version."""

    id: str
    version: dict[str, str]


class RunDetails(_Part, frozen=True):
    """How a build ran."""

    builder: Builder


class Provenance(_Part, frozen=True):
    """A predicate of the type `PREDICATE_TYPE`."""

    build_definition: BuildDefinition
    run_details: RunDetails
