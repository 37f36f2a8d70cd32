"""Describe a bundle's origin: the sources, command and tools of its provenance, and its signature."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot_runtime.contract.provenance import SOURCE_CLOSURE, Provenance, Resource, decode_provenance
from aot_runtime.contract.records import Index
from aot_runtime.errors import TrustError
from aot_runtime.texts import escaped

if TYPE_CHECKING:
    from aot_bundle.trust.state import SignatureState
    from aot_runtime.trust.policy import TrustPolicy

PYPI = "pkg:pypi/"


@dataclass(frozen=True)
class Origin:
    """The contents of a bundle's provenance.

    Attributes:
        manifest: its path relative to the project root.
        command: the build command.
        tools: aotbuild with its version.
        packages: the compilers, by package URL.
        files: manifests, tuning files and kernel files, with their SHA-256.
        kernels: `file.py:kernel`, each with the hash of all source text that it depends on.
    """

    manifest: str
    command: str
    tools: tuple[str, ...]
    packages: tuple[Resource, ...]
    files: tuple[Resource, ...]
    kernels: tuple[Resource, ...]

    @property
    def compilers(self) -> list[str]:
        """Names and versions of the compilers, such as `triton 3.9.0`."""
        return [package.uri.removeprefix(PYPI).replace("@", " ") for package in self.packages]


def origin_of(index: Index) -> Origin | None:
    """Return the origin of a bundle, or None if it was not recorded. Raises `BundleError` if it is malformed."""
    provenance = decode_provenance(index)
    return None if provenance is None else find_origin(provenance)


def find_origin(provenance: Provenance) -> Origin:
    """Extract the origin from a provenance."""
    definition = provenance.build_definition
    dependencies = definition.resolved_dependencies
    parameters = definition.external_parameters
    return Origin(
        manifest=str(parameters.get("manifest", "")),
        command=shlex.join(_command(parameters)),
        tools=tuple(f"{name} {version}" for name, version in sorted(provenance.run_details.builder.version.items())),
        packages=tuple(item for item in dependencies if item.uri),
        files=tuple(item for item in dependencies if not item.uri and SOURCE_CLOSURE not in item.digest),
        kernels=tuple(item for item in dependencies if not item.uri and SOURCE_CLOSURE in item.digest),
    )


def _command(parameters: dict[str, str | bool]) -> Iterator[str]:
    yield from ("aotbuild", "--arch", str(parameters.get("arch", "")))
    if chosen := parameters.get("filter"):
        yield from ("--filter", str(chosen))
    for calls in filter(None, str(parameters.get("for", "")).split(",")):
        yield from ("--for", calls)
    for key, option in (("neighbours", "--neighbours"), ("add", "--add"), ("lineInfo", "--line-info")):
        if parameters.get(key) is True:
            yield option
    yield str(parameters.get("manifest", ""))


def signature_of(bundle: Path, policy: TrustPolicy | None) -> SignatureState:
    """Return the state of a bundle's signature, also if refused. Raises `BundleError` if it is not a bundle."""
    from aot_bundle.trust.state import SignatureState, signature_state

    try:
        return signature_state(bundle, policy)
    except TrustError as error:
        return SignatureState("refused", f"REFUSED: {error}")


def origin_lines(index: Index, signature: SignatureState) -> list[str]:
    """Format provenance and signature in a line each."""
    origin = origin_of(index)
    if origin is None:
        return ["provenance: not recorded", escaped(f"signature: {signature.text}")]
    made = f"{origin.manifest}, with {len(origin.files)} files and {len(origin.kernels)} kernels as sources"
    tools = ", ".join([*origin.tools, *origin.compilers])
    return [escaped(f"provenance: {made}; {tools}"), escaped(f"signature: {signature.text}")]
