"""Indices of elements of Gluon's tensors."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def range_of(dim: gl.constexpr, size: gl.constexpr, layout: gl.constexpr):
    """Return 0 .. size - 1 along one of three dims."""
    if dim == 0:
        return gl.arange(0, size, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    elif dim == 1:
        return gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    else:
        return gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
