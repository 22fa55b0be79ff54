import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.packing import pack, pad, padded_layout, unpack, unpad


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_layout_puts_each_token_at_its_sequence_and_position(lengths, spare, random):
    width = max(lengths) + spare
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    packed = torch.arange(1.0, 2.0 * sum(lengths) + 1).view(-1, 2)
    layout = padded_layout(cu_seqlens, width, sum(lengths))
    padded = pad(packed, layout)
    expected = torch.zeros(len(lengths), width, 2)
    rows = iter(packed)
    for sequence, length in enumerate(lengths):
        for column in range(length):
            expected[sequence, column] = next(rows)
    torch.testing.assert_close(padded.view_as(expected), expected)
    torch.testing.assert_close(unpad(padded, layout), packed)
    if layout.key_mask is not None:
        assert torch.equal(layout.key_mask[:, 0, 0], expected[..., 0] > 0)


def test_equal_lengths_need_no_mask_and_no_copy():
    layout = padded_layout(torch.tensor([0, 4, 8], dtype=torch.int32), 4, 8)
    assert layout.rows is None and layout.key_mask is None
    packed = torch.randn(8, 3)
    assert pad(packed, layout) is packed and unpad(packed, layout) is packed


def test_gradients_of_pad_and_unpad():
    layout = padded_layout(torch.tensor([0, 3, 4, 9], dtype=torch.int32), 6, 9)
    packed = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    padded = torch.randn(18, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pad(x, layout), packed)
    assert torch.autograd.gradcheck(lambda x: unpad(x, layout), padded)


def test_pack_and_unpack_are_inverse(make_batch):
    ids, segments, mask = make_batch([5, 1, 7], width=9)
    batch = pack(ids, segments, mask)
    assert batch.cu_seqlens.tolist() == [0, 5, 6, 13]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.position_ids.tolist() == [*range(5), 0, *range(7)]
    assert torch.equal(unpack(batch.input_ids, batch), ids * mask)


def test_padding_on_the_left_keeps_columns_as_positions():
    mask = torch.tensor([[0, 0, 1, 1]])
    batch = pack(torch.tensor([[0, 0, 8, 9]]), torch.zeros(1, 4, dtype=torch.long), mask)
    assert batch.position_ids.tolist() == [2, 3]
    assert unpack(batch.input_ids, batch).tolist() == [[0, 0, 8, 9]]


def test_an_empty_row_is_refused(make_batch):
    ids, segments, mask = make_batch([5, 1])
    mask[1] = 0
    with pytest.raises(ValueError, match="row 1 of the batch holds no token"):
        pack(ids, segments, mask)
    with pytest.raises(ValueError, match="one shape"):
        pack(ids, segments, mask[:1])
