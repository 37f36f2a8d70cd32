"""Read cache entries of any content with valid digests: each is refused, or as good as a genuine one.

Accepted entries are put into a bundle, in which a reader must find no fault.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from aot.cache.layered_cache import CompileCache, sealed
from aot.cache.shared_cache import LOG
from aot.compile.jobs import CompiledKernel
from aot.manifest.loading import load_manifest
from aot.plan.bundles import plan_bundle
from aot.targets import Target
from aot.workers.batch import look_up
from aot.write.bundle_writer import write_bundle
from aot.write.vectors import CaseVectors, VectorCache, blob_of, case_vectors, vectors_fault
from aot_bundle.verification import verify_bundle
from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.errors import BundleError
from tests.support.building.selftests import project

DEEP = "deep"
"""Stands for a list in a list, and so on, that nothing decodes."""
ODD = (
    0, 1, -1, 2, 7, 64, 65, 1 << 12, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63),
    None, True,
    float("nan"), float("inf"), -0.0, 1e308, "", "x", "\x1b[2J", "../../outside", b"", b"x", [], {}, [[[[1]]]], DEEP,
    msgspec.msgpack.Ext(5, b"x"), msgspec.msgpack.Ext(-1, bytes(4)),
)  # fmt: skip
"""Values that a field may come to have."""

Edit = tuple[tuple[Any, ...], Any]
"""A place in an entry, and what is put there."""


@dataclass(frozen=True)
class Entry:
    """An entry, made of a right one.

    Attributes:
        kind: `kernel` or `vectors`.
        edits: of the values that it holds.
        content: (offset, byte) of what it holds in bytes: the code object, or the file of vectors.
        adopted: whether what is said of these bytes is made to fit.
        raw: (offset, bytes that are put there, bytes that go) of the entry once it is encoded.
    """

    kind: str
    edits: tuple[Edit, ...]
    content: tuple[tuple[int, int], ...]
    adopted: bool
    raw: tuple[tuple[int, bytes, int], ...]


class Entries:
    """Tries entries, one after the other, in a cache of its own."""

    def __init__(self, folder: Path):
        made = project(folder / "project")
        made.build()
        self.folder = folder
        self.bundle = plan_bundle(load_manifest(made.manifest), Target("gfx942"), {}, False)
        self.kernel_cache, self.vector_cache = CompileCache(made.cache), VectorCache(made.cache)
        self.kernels = self.kernel_cache.get_many(self.bundle.jobs)
        self.vectors = tuple(case_vectors(self.bundle.cases, self.vector_cache))
        self.entries = {"kernel": min(made.cache.glob("v2/*/*")), "vectors": min(made.cache.glob("vectors-v1/*/*"))}
        self.right: dict[str, CompiledKernel | CaseVectors] = {
            "kernel": self.kernels[self.entries["kernel"].name],
            "vectors": self.vector_cache.get_many([self.entries["vectors"].name])[self.entries["vectors"].name],
        }
        (self.recipe,) = (
            case.recipe
            for case, vectors in zip(self.bundle.cases, self.vectors, strict=True)
            if vectors == self.right["vectors"]
        )
        self.trees = {kind: msgspec.msgpack.decode(msgspec.msgpack.encode(value)) for kind, value in self.right.items()}
        LOG.setLevel(logging.ERROR)

    def strategy(self) -> st.SearchStrategy[Entry]:
        """Generate entries of both kinds."""
        offsets = st.one_of(st.integers(0, 1 << 9), st.integers(0, 1 << 16))
        leaves = st.one_of(
            st.sampled_from(ODD), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=9)
        )
        values = st.one_of(leaves, leaves, st.lists(leaves, max_size=3), st.dictionaries(st.text(max_size=3), leaves))

        def entries(kind: str) -> st.SearchStrategy[Entry]:
            places = st.sampled_from(list(_places(self.trees[kind])))
            few = st.lists(st.tuples(places, values), min_size=1, max_size=3).map(tuple)
            flips = st.lists(st.tuples(offsets, st.integers(0, 255)), min_size=1, max_size=4).map(tuple)
            raw = st.lists(st.tuples(offsets, st.binary(max_size=9), st.integers(0, 40)), min_size=1, max_size=3).map(
                tuple
            )
            none = st.just(())
            return st.one_of(
                st.builds(Entry, st.just(kind), few, none, st.just(False), none),
                st.builds(Entry, st.just(kind), none, flips, st.booleans(), none),
                st.builds(Entry, st.just(kind), none, none, st.just(False), raw),
            )

        return st.one_of(entries("kernel"), entries("vectors"))

    def check(self, given: Entry) -> str:
        """Return what became of an entry. Raises AssertionError for what must not happen."""
        path, right = self.entries[given.kind], self.right[given.kind]
        path.write_bytes(sealed(path.name, self._body(given)))
        found = self._kernel(path.name) if given.kind == "kernel" else self._vectors(path.name)
        if found is None or found == right:
            return f"{given.kind}: {'refused' if found is None else 'as it was'}"
        kernels = {**self.kernels, path.name: found} if isinstance(found, CompiledKernel) else self.kernels
        vectors = [found if made == right and isinstance(found, CaseVectors) else made for made in self.vectors]
        written = write_bundle(self.bundle, kernels, vectors, self.folder / "out")
        faults = verify_bundle(written.folder)
        assert faults == [], faults
        return f"{given.kind}: taken"

    def _kernel(self, key: str) -> CompiledKernel | None:
        return look_up({key: self.bundle.jobs[key]}, self.kernel_cache)[0].kernels.get(key)

    def _vectors(self, key: str) -> CaseVectors | None:
        return self.vector_cache.get_many([key], lambda key, made: vectors_fault(made, self.recipe)).get(key)

    def _body(self, given: Entry) -> bytes:
        tree = msgspec.msgpack.decode(msgspec.msgpack.encode(self.right[given.kind]))
        name = "image" if given.kind == "kernel" else "content"
        content = bytearray(tree[name])
        for offset, byte in given.content:
            content[offset % len(content)] = byte
        tree[name] = bytes(content)
        if given.adopted:
            tree = self._adopted(given.kind, tree)
        for place, value in given.edits:
            _put(tree, place, value)
        body = bytearray(msgspec.msgpack.encode(tree))
        deep = b"\x91" * 5000 + b"\xc0"
        body = body.replace(b"\xa4" + DEEP.encode(), deep)
        for offset, put, gone in given.raw:
            at = offset % (len(body) + 1)
            body[at : at + gone] = put
        return bytes(body)

    def _adopted(self, kind: str, tree: Any) -> Any:
        """Make an entry describe its bytes as they are, as a forger does."""
        if kind == "kernel":
            kernel = self.right["kernel"]
            assert isinstance(kernel, CompiledKernel)
            try:
                metadata = read_code_object(tree["image"]).kernel(kernel.symbol)
            except BundleError:
                return tree
            return msgspec.msgpack.decode(
                msgspec.msgpack.encode(replace(kernel, image=tree["image"], metadata=metadata))
            )
        blob = blob_of(tree["content"])
        tree["case"]["vectors"] = {"file": blob.file, "size": blob.size, "sha256": blob.sha256}
        return tree


def _places(tree: Any, above: tuple[Any, ...] = ()) -> Any:
    if above:
        yield above
    if isinstance(tree, dict):
        yield (*above, "more")
        for key, value in tree.items():
            yield from _places(value, (*above, key))
    elif isinstance(tree, list) and tree:
        yield from _places(tree[0], (*above, 0))


def _put(tree: Any, place: tuple[Any, ...], value: Any) -> None:
    try:
        for key in place[:-1]:
            tree = tree[key]
        tree[place[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass
