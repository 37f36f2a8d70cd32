"""Random calls on a GPU: their times beside those of peers, and their results. torch makes the tensors."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from on_gpu import device_times, our_graph, peer_graph

from aot_bundle.callspec import parse_scalar
from aot_runtime import Bundle
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.dtypes import numpy_dtype

from .checks import wrong
from .family import Call, Drawn, Family, Peaks, Tensors, Values, plan, tensor_bytes

CACHED = 256 << 20
"""Bytes that the calls of a graph go through: more than an L2 cache holds."""
MOST_COPIES = 16
PEAK_SIZE = 8192
"""Extents of the product that tells the peak of matrix units."""
PEAK_BYTES = 1 << 30
NOT_TAKEN = (RuntimeError, TypeError, ValueError)
"""Errors by which torch refuses a call."""

Graph = tuple[Callable[[], Any], int]
"""A function that replays several calls, and their number."""


@dataclass(frozen=True)
class Found:
    """Times of a call and of the fastest peer, in seconds, and the fault of the result. peer: NaN if there is none."""

    ours: float
    peer: float
    peer_name: str
    fault: str


@dataclass(frozen=True)
class Gpu:
    """Measures calls.

    Attributes:
        bundles: bundle of each op.
        rounds: rounds of each way.
    """

    torch: Any
    bundles: Mapping[str, Bundle]
    rounds: int
    device: str = "cuda"

    @cached_property
    def peaks(self) -> Peaks:
        """Measure the rate of a large copy and of a large product, and the time of a small copy."""
        bundle = next(iter(self.bundles.values()))
        a = self.torch.randn((PEAK_SIZE, PEAK_SIZE), dtype=self.torch.float16, device=self.device)
        ways = {"launch": self._copy(2), "copy": self._copy(PEAK_BYTES), "product": partial(self.torch.mm, a, a)}
        graphs = {name: peer_graph(self.torch, [way])[0] for name, way in ways.items()}
        times = device_times(bundle, graphs, self.rounds)
        found = Peaks(PEAK_BYTES / times["copy"], 2.0 * PEAK_SIZE**3 / times["product"],
                      bundle.device.properties.num_cus, times["launch"])  # fmt: skip
        print(f"a copy {found.bandwidth / 1e12:.2f} TB/s, a product of {PEAK_SIZE}^3 {found.flops / 1e12:.0f} TFLOP/s",
              flush=True)  # fmt: skip
        return found

    def measure(self, family: Family, drawn: Drawn) -> Found:
        """Time a call beside its peers. All take turns."""
        bundle, call = self.bundles[drawn.call.op], drawn.call
        decision = plan(bundle, call)
        copies = self._copies(call, decision)
        ours = self._our_graph(call, copies)
        fault = wrong(family, bundle[call.op].planner.op, decision, call, copies[0], self._to_numpy)
        peers, scale = self._peers(family, drawn, copies)
        graphs = {"ours": ours, **peers}
        times = device_times(bundle, {name: replay for name, (replay, _) in graphs.items()}, self.rounds)
        seconds = {name: taken / graphs[name][1] for name, taken in times.items()}
        own = seconds.pop("ours")
        if not seconds:
            return Found(own, math.nan, "none takes it", fault)
        name = min(seconds, key=seconds.__getitem__)
        peer = seconds[name] * scale
        if family.rate and call.flops / family.rate(self.peaks) > peer:
            name, peer = "peak", call.flops / family.rate(self.peaks)
        return Found(own, peer, name, fault)

    def release(self) -> None:
        """Free the memory of earlier calls."""
        gc.collect()
        self.torch.cuda.empty_cache()

    # Ways

    def _peers(self, family: Family, drawn: Drawn, copies: Sequence[Tensors]) -> tuple[dict[str, Graph], float]:
        """Capture the peers of a call. Returns the factor of their times besides."""
        call = drawn.call
        if drawn.plain:
            return {"ours, plain": self._our_graph(drawn.plain)}, 1.0
        if family.peers is None:
            nbytes = self._nbytes(call)
            return {"copy": peer_graph(self.torch, [self._copy(nbytes) for _ in copies])}, 1.0
        found = self._peer_graphs(family, drawn, call, copies)
        if found or drawn.padded is None:
            return found, 1.0
        scale = self.peaks.bound(call, self._nbytes(call)) / self.peaks.bound(drawn.padded, self._nbytes(drawn.padded))
        wider = self._copies(drawn.padded, plan(self.bundles[drawn.padded.op], drawn.padded))
        found = self._peer_graphs(family, drawn, drawn.padded, wider) or {"ours": self._our_graph(drawn.padded, wider)}
        return {f"{name}, by 128": graph for name, graph in found.items()}, scale

    def _peer_graphs(self, family: Family, drawn: Drawn, call: Call, copies: Sequence[Tensors]) -> dict[str, Graph]:
        """Capture the ways of torch that take a call: the one drawn, or the padded one."""
        assert family.peers
        found: dict[str, Graph] = {}
        refusals = []
        ways = [family.peers(self.torch, tensors, call) for tensors in copies]
        for name in ways[0]:
            try:
                ways[0][name]()
                found[name] = peer_graph(self.torch, [each[name] for each in ways])
            except NOT_TAKEN as error:
                refusals.append(f"{name}: {str(error).splitlines()[0]}")
        if not found and drawn.padded is None:
            print(f"no peer takes {call}: {'; '.join(refusals)}", flush=True)
        return found

    def _our_graph(self, call: Call, copies: Sequence[Tensors] | None = None) -> Graph:
        bundle = self.bundles[call.op]
        copies = copies or self._copies(call, plan(bundle, call))
        return our_graph(bundle, [self._our_call(call, tensors) for tensors in copies])

    def _our_call(self, call: Call, tensors: Tensors) -> Callable[..., Any]:
        bundle = self.bundles[call.op]
        op, texts = bundle[call.op].planner.op, call.spec.scalars
        given = [scalar for scalar in op.scalars if scalar.name in texts]
        scalars = {scalar.name: parse_scalar(op, scalar, texts[scalar.name]) for scalar in given}
        arrays = {name: bundle.device.wrap(tensor) for name, tensor in tensors.items()}
        return partial(bundle[call.op], **arrays, **scalars)

    def _copy(self, nbytes: float) -> Callable[[], Any]:
        """Return a copy that moves so many bytes: it reads one half of them and writes the other."""
        size = max(1, int(nbytes) // 2)
        source, target = (self.torch.empty(size, dtype=self.torch.uint8, device=self.device) for _ in range(2))
        return partial(target.copy_, source)

    def _nbytes(self, call: Call) -> float:
        return tensor_bytes(plan(self.bundles[call.op], call)) if call.nbytes is None else call.nbytes

    # Tensors

    def _copies(self, call: Call, decision: Decision) -> list[Tensors]:
        """Make the tensors of several calls, more than caches hold."""
        count = max(1, min(MOST_COPIES, CACHED // max(1, tensor_bytes(decision))))
        return [self._tensors(call, decision, seed) for seed in range(count)]

    def _tensors(self, call: Call, decision: Decision, seed: int) -> Tensors:
        torch, made = self.torch, {}
        generator = torch.Generator(self.device).manual_seed(seed)
        for name, layout in decision.layouts.items():
            dtype = getattr(torch, layout.dtype)
            made[name] = torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=self.device)
            self._fill(made[name], call.values.get(name), generator)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return made

    def _fill(self, tensor: Any, values: Values | None, generator: Any) -> None:
        torch = self.torch
        if isinstance(values, np.ndarray):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))
        elif not tensor.dtype.is_floating_point:
            ends = torch.iinfo(tensor.dtype)
            low, high = values if isinstance(values, tuple) else (ends.min, ends.max)
            tensor.random_(int(low), int(high) + 1, generator=generator)
        else:
            wide = tensor
            if tensor.itemsize == 1:  # torch draws no float8
                wide = torch.empty(tensor.shape, dtype=torch.float32, device=self.device)
            if isinstance(values, tuple):
                wide.uniform_(*values, generator=generator)
            else:
                wide.normal_(0.0, 1.0 if values is None else float(values), generator=generator)
            if wide is not tensor:
                tensor.copy_(wide)

    def _to_numpy(self, tensor: Any, dtype: str) -> np.ndarray:
        shape, host = tuple(tensor.shape), tensor.contiguous().cpu().flatten()
        return host.view(self.torch.uint8).numpy().view(numpy_dtype(dtype)).reshape(shape)
