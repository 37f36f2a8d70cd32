"""Families of random calls, by name, in the order of their table."""

from __future__ import annotations

from collections.abc import Mapping

from . import attention, caches, experts, products, rows
from .family import Family

FAMILIES: Mapping[str, Family] = {
    **products.FAMILIES, **attention.FAMILIES, **caches.FAMILIES, **rows.FAMILIES, **experts.FAMILIES
}  # fmt: skip
