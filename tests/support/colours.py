"""Contrast of text and its background."""

from __future__ import annotations


def contrast(one: str, other: str) -> float:
    """Return the ratio of WCAG 2.2 between two colours."""
    parts = ([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in (one, other))
    linear = ([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in part] for part in parts)
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
    return (light + 0.05) / (dark + 0.05)
