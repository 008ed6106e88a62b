"""The products of long rows equal a plain product, for all block sizes and types."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.engine.rows import BLOCK, gram_of


@settings(max_examples=10, deadline=None)
@given(n=st.integers(0, 7), p=st.sampled_from([0, 1, 5, BLOCK, BLOCK + 1, 2 * BLOCK + 3]), exact=st.booleans())
def test_it_equals_the_plain_product_for_any_blocks(n: int, p: int, exact: bool) -> None:
    rows = torch.randn(n, p, generator=torch.Generator().manual_seed(p))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakbench.engine.rows.SOME", 3)
        found = gram_of(rows, exact)
    assert torch.equal(found, found.T)
    assert found.dtype == torch.float64
    reference = rows.double() @ rows.double().T
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-12 * (p + 1) if exact else 1e-6 * (p + 1))


@pytest.mark.parametrize("exact", [True, False])
def test_double_precision_keeps_what_single_precision_loses_within_a_block(exact: bool) -> None:
    """1 + 2^-30 over two coordinates of a block: single precision cannot represent it; over two blocks it is kept either way."""
    within, across = torch.zeros(2, 1, 2 * BLOCK)
    within[0, 0] = across[0, 0] = 1.0
    within[0, 1] = across[0, BLOCK] = 2.0**-15
    assert float(gram_of(across, exact)) == 1 + 2.0**-30
    assert float(gram_of(within, exact)) == (1 + 2.0**-30 if exact else 1.0)
