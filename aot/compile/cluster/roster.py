"""Which workers of a cluster there are, which of them may compile, and which of them gets a job next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..jobs import CompileJob


@dataclass(eq=False)
class Call:
    """A job on its way.

    Attributes:
        outcome: what is passed on to who asked for it.
        task: dask's future of the present attempt; None while it waits.
        losses: how attempts ended that were not the job's own end.
        alone: to be run on a worker that runs nothing else: one that ends then was ended by this job.
    """

    outcome: Future[Any]
    function: Any
    job: CompileJob
    task: Any = None
    losses: list[str] = field(default_factory=list)
    alone: bool = False


@dataclass(eq=False)
class Seat:
    """A worker of the cluster.

    Attributes:
        identity: another one once the worker was started again at its address.
        slots: jobs that it runs at once.
        check: dask's future of the facts about it, which decide whether it is admitted.
        fault: why it is given no jobs.
    """

    address: str
    identity: str
    slots: int
    check: Any = None
    admitted: bool = False
    fault: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return self.admitted and not self.fault


VERSIONS = ("Python", "machine", "aotbuild", "Triton")
"""Of the facts about a machine those that others follow from."""


class Roster:
    """The workers, by address."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def running(self) -> int:
        """Jobs that workers have."""
        return sum(len(seat.calls) for seat in self)

    def update(self, workers: Mapping[str, Mapping[str, Any]]) -> tuple[list[Seat], list[Seat]]:
        """Take over who is there, as the scheduler says; those who are new, and those who are gone."""
        gone = [seat for seat in self if seat.identity != str(workers.get(seat.address, {}).get("id"))]
        for seat in gone:
            del self._seats[seat.address]
        new = [
            Seat(address, str(facts["id"]), int(facts["nthreads"]))
            for address, facts in workers.items()
            if address not in self._seats and facts["nthreads"]
        ]
        self._seats |= {seat.address: seat for seat in new}
        return new, gone

    def pick(self, alone: bool) -> Seat | None:
        """The worker for the next job: of those that may have it the one that is least busy."""
        free = [
            seat
            for seat in self
            if seat.usable
            and (not seat.calls if alone else len(seat.calls) < seat.slots)
            and not any(call.alone for call in seat.calls)
        ]
        return max(free, key=lambda seat: seat.slots - len(seat.calls), default=None)

    def faults(self) -> str:
        """Why no worker can be used; empty where one can, or may yet."""
        faults = [f"{seat.address}: {seat.fault}" for seat in self]
        return "; ".join(sorted(faults)) if faults and all(seat.fault for seat in self) else ""


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What another machine has that is not as wanted, in words: of its versions, and of what else there is only where
    these agree."""
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    names = [name for name in names if name in VERSIONS] or names
    return ", ".join(f"{name} is {found.get(name, 'not set')}, not {wanted.get(name, 'set')}" for name in names)
