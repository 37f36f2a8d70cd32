"""Infer the dtypes of an op's tensors from the launch, else from the kernel's operations on their values."""

from __future__ import annotations

import re

from aot_runtime.contract.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8

from .findings import READ, UPDATE
from .tensors import DraftTensor
from .workbench import Workbench

FLOATS = [FLOAT16.name, BFLOAT16.name, FLOAT32.name]
_STATISTIC = re.compile(r"(?i)mean|rstd|rvar|rms|lse|logsumexp|loss|delta|(^|_)(m|l)(_ptr)?$|stat")
_INDEX = re.compile(r"(?i)idx|index|indices|label|target|(^|_)ids?(_|$)|offs|cu_seq|lens?(_|$)|count|table|slots?")
_NARROW = re.compile(r"(?i)offs|start|cu_|len|count|table|lock|lut|block|tile")
_MASK = re.compile(r"(?i)(^|_)mask")
_QUANTISED = re.compile(r"(?i)quant|fp8|int8|(^|_)q(_ptr)?$|_q$|packed")


class Dtypes:
    """Assignment of a dtype or a dtype variable to each tensor, with notes on guesses."""

    def __init__(self, work: Workbench):
        self.work, self.found = work, work.found
        self._variables: dict[tuple[str, ...], str] = {}
        self._data = set().union(*(stored.sources for stored in self.found.stored.values()))

    def of(self, tensor: DraftTensor) -> str:
        """Return the dtype of a tensor, or its variable."""
        host = self.work.launch.tensor(tensor.parameter)
        options = self.found.element.get(tensor.parameter) or (host.final_dtypes() if host is not None else ())
        if options:
            if host is not None and host.is_dtype_default:
                self._guess(tensor, options[0], "its dtype, which the caller chooses")
            if tensor.is_index:
                self._guess(tensor, options[0], "the `range` of its numbers")
            return options[0] if len(options) == 1 else self._variable(options)
        if host is not None and host.dtype_root is not host:
            root = self.work.tensor_passed_for(host.dtype_root)
            if root is not None and root is not tensor:
                return self.of(root)
        stored = self.found.stored.get(tensor.parameter)
        if tensor.kinds.isdisjoint({READ, UPDATE}) and stored is not None and len(stored.dtypes) == 1:
            dtype = min(stored.dtypes)
            if host is None or host.made or dtype not in FLOATS:
                return dtype
        if tensor.parameter in self.found.wide:
            return FLOAT32.name  # Triton's functions of floats take no narrower ones
        if tensor.parameter in self.found.bits:
            few = self.found.bits[tensor.parameter] <= 15
            return self._guess(tensor, UINT8.name if few else INT32.name, "which integers it has")
        if tensor.is_index:
            dtype = INT32.name if _NARROW.search(tensor.parameter) else INT64.name
            return self._guess(tensor, dtype, "which integers it has, and their `range`")
        return self._by_use(tensor)

    def _by_use(self, tensor: DraftTensor) -> str:
        name, parameter = self.work.tensor_name(tensor.parameter), tensor.parameter
        is_read = tensor.kinds <= {READ}
        if parameter in self.found.asked or (is_read and _MASK.search(name)):
            return self._guess(tensor, BOOL.name, "its dtype")
        if "lock" in name.lower():
            return self._guess(tensor, INT32.name, "its dtype")
        if is_read and parameter not in self._data:
            dtype = INT64.name if _INDEX.search(name) and not _NARROW.search(name) else INT32.name
            if _STATISTIC.search(name):
                dtype = FLOAT32.name
            return self._guess(tensor, dtype, "its dtype")
        if is_read and _INDEX.search(name):
            return self._guess(tensor, "T", "its dtype")
        if _STATISTIC.search(name) and not re.search(r"(?i)scale|^d[a-z]$", name):
            return self._guess(tensor, FLOAT32.name, "its dtype")
        is_small = bool(_QUANTISED.search(name)) or self._is_rounded(tensor)
        if READ not in tensor.kinds and not self._is_made(tensor) and is_small:
            return self._guess(tensor, INT8.name, "its dtype")
        if not is_read and self.work.launch.is_there and not self._is_known(tensor):
            return self._guess(tensor, "T", "its dtype")
        return "T"

    def _is_made(self, tensor: DraftTensor) -> bool:
        host = self.work.launch.tensor(tensor.parameter)
        return host is not None and bool(host.made) and host.dtype_root is not host

    def _is_known(self, tensor: DraftTensor) -> bool:
        """Return True if the dtype of a written tensor is known from a tensor like it, or because it is also read."""
        return self._is_made(tensor) or READ in tensor.kinds

    def _is_rounded(self, tensor: DraftTensor) -> bool:
        names = [self.work.tensor_name(other.parameter).lower() for other in self.work.tensors if other is not tensor
                 and not other.kinds <= {READ}]  # fmt: skip
        return any("scale" in name for name in names)

    def _guess(self, tensor: DraftTensor, dtype: str, what: str) -> str:
        self.work.op.note("tensors", self.work.tensor_name(tensor.parameter), what)
        return dtype

    def _variable(self, options: tuple[str, ...]) -> str:
        if options not in self._variables:
            name = "T" if not self._variables else f"T{len(self._variables) + 1}"
            self._variables[options] = name
            self.work.op.dtypes[name] = list(options)
        return self._variables[options]

    def finish(self) -> None:
        """Declare the variable of float dtypes. If no input has it, its tensors are float32."""
        tensors = self.work.op.tensors.values()
        required = [item for item in tensors if item.get("role") != "output" and not item.get("optional")]
        if "T" in self.work.op.dtypes:
            return
        if any(item["dtype"] == "T" for item in required):
            self.work.op.dtypes["T"] = FLOATS
            return
        for name, item in self.work.op.tensors.items():
            if item["dtype"] == "T":
                item["dtype"] = FLOAT32.name
                self.work.op.note("tensors", name, "its dtype")
