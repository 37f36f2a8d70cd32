"""Shards of a build's compile jobs, for Slurm arrays, make and CI matrices, and the list of jobs as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from aot.plan.bundles import PlannedBundle, PlannedVariant

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """A part of a build's jobs, by its number from 1 on. Raises ValueError unless 1 <= number <= count."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self}: the number of shards must be at least 1")
        if not 1 <= self.number <= self.count:
            raise ValueError(f"no shard {self}; shards are 1/{self.count} to {self.count}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, jobs: Mapping[str, T]) -> dict[str, T]:
        """Return every `count`-th job in the order of keys. Keys are hashes, so long jobs spread over all shards."""
        return {key: jobs[key] for key in islice(sorted(jobs), self.number - 1, None, self.count)}


WHOLE = Shard(1, 1)


def jobs_json(bundles: Iterable[PlannedBundle], shard: Shard) -> str:
    """The jobs of a shard as JSON: an array with an object for each job."""
    variants: dict[str, list[tuple[str, PlannedVariant]]] = {}
    for bundle in bundles:
        for variant in bundle.variants:
            variants.setdefault(variant.key, []).append((bundle.folder_name, variant))
    jobs = [_facts(key, found, shard) for key, found in shard.of(variants).items()]
    return json.dumps(jobs, indent=2, default=str)


def _facts(key: str, variants: Sequence[tuple[str, PlannedVariant]], shard: Shard) -> dict[str, Any]:
    job = variants[0][1].job
    return {
        "key": key,
        "shard": str(shard),
        "arch": job.arch,
        "kernel": f"{job.source}:{job.function}",
        "signature": dict(job.signature),
        "constants": dict(job.constants) | dict(job.functions),
        "options": dict(job.options),
        "sources": [file for file, _ in job.sources],
        "ops": list(dict.fromkeys(variant.spec.op for _, variant in variants)),
        "variants": [f"{bundle}: {variant.spec.label}" for bundle, variant in variants],
    }
