"""Published winners and times of an MI300X: the rows of `mi300x_timings.csv` and `mi300x_winners.csv`."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traces import Attention, Config, Experts, Product, Scaled

HEADS = 5
BATCH_HEADS = 3 * HEADS
"""Heads of all batches in AOTriton's tuner: 3 batches of 5 heads."""
LEAST_LENGTH = 256
"""Minimum length of queries and keys of the attention problems that are used."""


@dataclass(frozen=True)
class Key:
    """A problem with its published winner.

    Attributes:
        shape: (m, n, k) of a product; (queries, keys) of attention; for experts (tokens, size between the two products,
            size of a token, experts, experts for each token).
        us: the published time; None if only the winner was published.
        group: the winner's GROUP_M, for products.
    """

    shape: tuple[int, ...]
    winner: Config
    us: float | None
    group: int
    source: str

    @property
    def name(self) -> str:
        sizes = "x".join(map(str, self.shape))
        if isinstance(self.winner, Product):
            return f"{'plain' if self.winner.split else 'product'} {self.winner.layout} {sizes} {self.source}"
        if isinstance(self.winner, Scaled):
            return f"scaled {sizes} {self.source}"
        if isinstance(self.winner, Experts):
            return f"experts {self.shape[3]} {self.shape[0]}x{self.shape[1]} {self.source}"
        form = f"{self.winner.dtype} d{self.winner.d}{' causal' if self.winner.causal else ''}"
        return f"attention {form} {sizes} {self.source}"


def products(folder: Path, layout: str, least_us: float = 0.0) -> list[Key]:
    """Return times of the persistent kernel, without flagged rows."""
    found = []
    with (folder / "mi300x_timings.csv").open() as file:
        for row in csv.DictReader(file):
            what = (row["kind"], row["kernel"], row["note"], row["flag"])
            if what != ("triton_gemm", "gemm_streamk_persistent", layout, "") or float(row["us"]) < least_us:
                continue
            c = json.loads(row["config"])
            if not c.get("NUM_SMS") or int(row["M"]) < 16:
                continue
            sizes = (c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], c["num_warps"], c["nonkdim"], c["kpack"])
            shape = (int(row["M"]), int(row["N"]), int(row["K"]))
            found.append(Key(shape, Product(*sizes, layout), float(row["us"]), c["GROUP_M"], row["src"]))
    return [key for key in found if fits(key.winner)]


def plain_products(folder: Path, layout: str) -> list[Key]:
    """Return winners, without times, of the kernel with a program for each tile or each part of K of a tile."""
    found = []
    for row in _winners(folder, "gemm_plain", "A"):
        if json.loads(row["other"])["layout"] == layout:
            sizes = tuple(int(row[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "nonkdim", "kpack"))
            winner = Product(*sizes, layout, int(row["SPLIT_K"]))
            found.append(Key(_mnk(row), winner, None, int(row["GROUP_M"]), row["src"]))
    return [key for key in found if fits(key.winner)]


def scaled_products(folder: Path) -> list[Key]:
    """Return winners of fp8 products whose scales are for blocks of 128 by 128 and of 1 by 128."""
    found = []
    for row in _winners(folder, "gemm_a8w8_blockscale_vllm", "B"):
        if row["device"] == "MI300X":
            names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "GROUP_M")
            winner = Scaled(*(int(row[name]) for name in names))
            found.append(Key(_mnk(row), winner, None, winner.group, row["src"]))
    return found


MIXTRALS, QWEN = {4096: (1792, 3584, 7168, 14336), 6144: (2048, 4096, 8192, 16384)}, (2048, 4)
"""Models with published experts. Mixtrals have 8 experts, 2 for each token: size between the two products → size of a
token. Qwen has 60 experts: (size of a token, experts for each token)."""


def experts(folder: Path) -> list[Key]:
    """Return winners of fp16 experts. The model follows from the number of experts and the sizes."""
    found = []
    hidden_of = {between: hidden for hidden, sizes in MIXTRALS.items() for between in sizes}
    for row in _winners(folder, "fused_moe", "B"):
        if (row["device"], row["dtype"]) != ("MI300X", "fp16/bf16") or row["E"] not in ("8", "60"):
            continue
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "nonkdim", "kpack")
        tokens, between = int(row["M"]), int(row["N"])
        hidden, each = QWEN if row["E"] == "60" else (hidden_of[between], 2)
        shape = tokens, between, hidden, int(row["E"]), each
        winner = Experts(*(int(row[name]) for name in names))
        found.append(Key(shape, winner, None, int(row["GROUP_M"]), row["src"]))
    return [key for key in found if fits(key.winner)]


def _winners(folder: Path, family: str, tier: str) -> Iterator[dict[str, str]]:
    with (folder / "mi300x_winners.csv").open() as file:
        yield from (row for row in csv.DictReader(file) if (row["family"], row["tier"]) == (family, tier))


def _mnk(row: Mapping[str, str]) -> tuple[int, int, int]:
    return int(row["M"]), int(row["N"]), int(row["K"])


def attentions(folder: Path, d: int, causal: bool = False, dtype: str = "fp16") -> list[Key]:
    """Return AOTriton's newest winners."""
    found = []
    with (folder / "mi300x_winners.csv").open() as file:
        for row in csv.DictReader(file):
            what = (row["family"], row["tier"], row["rev"], row["dtype"], row["causal"], row["D"])
            if what != ("attn_fwd_aotriton", "A", "0", dtype, str(int(causal)), str(d)):
                continue
            shape = int(row["sq"]), int(row["sk"])
            sizes = tuple(int(row[name]) for name in ("BLOCK_M", "BLOCK_N", "num_warps", "waves_per_eu"))
            winner = Attention(d, *sizes, json.loads(row["other"])["PRELOAD_V"], causal, dtype)
            if min(shape) >= LEAST_LENGTH:
                found.append(Key(shape, winner, None, 1, row["src"]))
    return found


def fits(config: Config) -> bool:
    """Return True if a tile of fp16 fits LDS and the registers."""
    assert isinstance(config, Product | Experts)
    accumulators = config.bm * config.bn / (64 * config.warps)
    return (config.bm + config.bn) * config.bk * 2 <= 65536 and accumulators <= 256


def product_space(keys: list[Key]) -> list[Product]:
    """Return configurations in the order in which they are traced: winners, their neighbours, the rest."""
    layout = keys[0].winner.layout if isinstance(keys[0].winner, Product) else "TN"
    won = [config for config, _ in Counter(key.winner for key in keys).most_common() if isinstance(config, Product)]
    tiles = tuple(dict.fromkeys((c.bm, c.bn, c.bk) for c in won))
    sizes = (16, 32, 64, 128, 256)

    def made() -> Iterator[Product]:
        yield from won
        for tile in tiles:
            yield from (Product(*tile, warps, 16, 2, layout) for warps in (8, 4, 2))
        for tile in tiles:
            yield from (Product(*tile, warps, 16, 1, layout) for warps in (8, 4))
        for warps, bk, bm, bn in itertools.product((4, 8), (64, 128, 256, 32), sizes, sizes):
            yield Product(bm, bn, bk, warps, 16, 2, layout)
        for tile, kpack in itertools.product(tiles, (2, 1)):
            if min(tile[:2]) >= 32:
                yield Product(*tile, 8, 32, kpack, layout)

    return [config for config in dict.fromkeys(made()) if fits(config)]


def attention_space(d: int, causal: bool = False, dtype: str = "fp16") -> list[Attention]:
    """Return the 80 configurations of AOTriton's tuner."""
    tiles = ((32, 16), (64, 32), (64, 64), (128, 64), (128, 128))
    return [
        Attention(d, *tile, warps, waves, preload, causal, dtype)
        for waves, tile, warps, preload in itertools.product((1, 2, 3, 4), tiles, (2, 4), (0, 1))
    ]


def scaled_space() -> list[Scaled]:
    """Return all tiles for four wavefronts except the largest, each with four values of GROUP_M. Nothing else won.

    The tuner's space was not published. Tiles have at least 32 rows, as in SGLang's tuner of the same kernel for AMD
    GPUs. Tiles of 16 rows won none of the 52 products with 1 to 16 rows that are not held out, and none of 95 on an
    MI325X.
    """
    made = itertools.product((32, 64, 128, 256), (32, 64, 128, 256), (1, 8, 16, 32))
    return [Scaled(bm, bn, group=group) for bm, bn, group in made if bm * bn < 256 * 256]


def pruned(key: Key, configs: Sequence[Product]) -> list[Product]:
    """Return the configs that the published tuner tries for a shape."""
    m, n, k = key.shape
    large = m >= 2048 and n >= 2048
    return [
        c for c in configs
        if (c.bm < 2 * m or c.bm == 16) and (c.bn < 2 * n or c.bn == 16)
        and not (large and (min(c.bm, c.bn) < 64 or c.warps < 4)) and c.split * c.bk <= k
    ]  # fmt: skip


def experts_space(keys: Sequence[Key]) -> list[Experts]:
    """Return configs in the order in which they are traced: winners, their neighbours, the rest."""
    won = [config for config, _ in Counter(key.winner for key in keys).most_common() if isinstance(config, Experts)]
    tiles = tuple(dict.fromkeys((c.bm, c.bn, c.bk) for c in won))
    made = [*won, *(Experts(*tile, warps) for tile in tiles for warps in (4, 8, 2))]
    made += [Experts(*tile, warps, 16, 1) for tile in tiles for warps in (4, 8)]
    sizes = itertools.product((4, 8, 2), (64, 128, 256, 32), (16, 32, 64, 128, 256), (64, 32, 128, 16, 256))
    made += [Experts(bm, bn, bk, warps) for warps, bk, bm, bn in sizes]
    return [config for config in dict.fromkeys(made) if fits(config)]


def pruned_experts(key: Key, configs: Sequence[Experts]) -> list[Experts]:
    """Return the configs that the published tuner tries for at least one of the two products."""
    tokens, between, hidden, _, each = key.shape
    both = ((tokens * each, 2 * between, hidden), (tokens * each, hidden, between))
    return [config for config in configs if any(_tried(config, *sizes) for sizes in both)]


def _tried(c: Experts, m: int, n: int, k: int) -> bool:
    large = m >= 2048 and n >= 2048
    return (
        c.nonkdim <= min(c.bm, c.bn, 16 if min(m, n) < 32 else 32) and k % c.bk == 0
        and (c.nonkdim < m or c.nonkdim == c.bm) and (c.nonkdim < n or c.nonkdim == c.bn)
        and (c.bm <= 2 * m or c.bm == 16) and (c.bn <= 2 * n or c.bn == 16)
        and not (large and (min(c.bm, c.bn, c.bk) < 64 or c.warps < 4))
    )  # fmt: skip


def groups_tried(key: Key, config: Experts) -> tuple[int, ...]:
    """Return the values of GROUP_M that the published tuner tries with a configuration."""
    rows = key.shape[0] * key.shape[4]
    return tuple(group for group in (1, 4, 8, 16, 32) if group == 1 or group * config.bm <= rows)
