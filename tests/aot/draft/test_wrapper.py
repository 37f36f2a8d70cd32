"""Facts of the function around a launch: shapes, strides, dtypes, conditions, sizes."""

import textwrap

import pytest

from aot.draft.wrapper import Launch, find_launch

PARAMETERS = ["x", "y", "z", "n", "s", "BLOCK"]


def launched(body: str, head: str = "x, w=None, size: int = 4", before: str = "") -> Launch:
    text = f"{before}\n\ndef run({head}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    return find_launch(text, "k", PARAMETERS)


# The function's body, its lines separated by `;` -> the size that is passed for n.
SIZES = """
rows, cols = x.shape; k[(rows,)](x, x, x, cols // 2) -> x__1 // 2
rows = x.numel() // x.shape[-1]; a, b = x.shape; k[(rows,)](x, x, x, rows) -> x__0
n = 1 << (x.shape[1] - 1).bit_length(); k[(1,)](x, x, x, n) -> next_pow2(x__1)
n = 2 ** math.ceil(math.log2(x.size(0))); k[(1,)](x, x, x, n) -> next_pow2(x__0)
k[(1,)](x, x, x, triton.cdiv(x.shape[0], 2 * 32)) -> cdiv(x__0, 64)
a, b = x.shape; v = x.view(-1, x.shape[-1]); k[(1,)](v, v, v, v.shape[0]) -> x__0
x, y = x.shape[0], x.shape[1]; k[(1,)](0, 0, 0, y) -> x__1
q = x.t(); a, b = x.shape; k[(1,)](q, q, q, q.shape[0]) -> x__1
size = size * 2; k[(1,)](x, x, x, size) -> size * 2
""".strip().splitlines()


@pytest.mark.parametrize("row", SIZES)
def test_sizes(row: str):
    body, _, expected = row.rpartition(" -> ")
    assert launched("\n".join(part.strip() for part in body.split(";"))).size("n") == expected


def test_shapes_strides_and_dtypes_of_what_is_made():
    found = launched(
        """
        T, W = x.shape
        assert x.dtype in (torch.float16, torch.bfloat16) and W % 64 == 0
        y = torch.empty((T, W // 2), dtype=torch.uint8)
        z = torch.zeros_like(x) if w is not None else None
        k[(T, W // 64)](x, y, z, T, y.stride(0), BLOCK=64)
        """
    )
    x, y, z = (found.tensor(name) for name in "xyz")
    assert x and y and z
    assert (x.shape, x.final_dtypes(), x.is_given) == (("x__0", "x__1"), ("float16", "bfloat16"), True)
    assert (y.shape, y.final_dtypes(), y.made) == (("x__0", "x__1 // 2"), ("uint8",), "empty")
    assert (z.shape, z.dtype_root, z.made, z.when) == (x.shape, x, "zeros", "given(w)")
    assert found.stride("s") == (y, 0) and found.constant("BLOCK") == 64
    assert found.facts.required == ["(x__1 % 64) == 0"]


def test_what_holds_in_a_branch_holds_there():
    found = launched(
        """
        if size == 4:
            assert x.dtype == torch.int8
        elif size > 8:
            raise ValueError(size)
        if w is not None:
            assert w.shape == (x.shape[0],)
        k[(1,)](x, w)
        """
    )
    x, w = found.tensor("x"), found.tensor("y")
    assert x and w and x.final_dtypes() == ()
    assert [found.final(dim) for dim in w.shape or ()] == [found.final(x.extent(0))]


def test_the_grid_may_be_a_function_and_its_helpers_are_gone_through():
    before = "def blocks(n):\n    size = triton.next_power_of_2(n)\n    return size, 4"
    found = launched(
        """
        rows, cols = x.shape
        block, warps = blocks(cols)

        def grid(meta):
            return (rows, triton.cdiv(cols, meta["BLOCK"]))

        k[grid](x, *x.shape, cols, *x.stride(), BLOCK=block, num_warps=warps)
        """,
        before=before,
    )
    assert found.size("BLOCK") == "next_pow2(x__1)"
    assert [getattr(extent, "text", "") for extent in found.grid] == ["x__0", "cdiv(x__1, BLOCK)"]


@pytest.mark.parametrize("body", ["while True:\n    x = x + x", "x = x or k", "k[(1,)](*x)", "k[grid](**x)", "return"])
def test_odd_functions_say_nothing(body: str):
    found = launched(f"{body}\nk[(1,)](x, x, x, run)")
    assert found.size("n") == ""
