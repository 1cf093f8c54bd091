import warnings

import pytest
import torch
from helpers import all_shifts
from hypothesis import given
from hypothesis import strategies as st

from trueshift.shifts import circular_shift, common_region, standard_shift


def test_content_moves_towards_higher_indices():
    assert circular_shift(torch.tensor([1, 2, 3, 4]), 1).tolist() == [4, 1, 2, 3]


def test_the_first_offset_is_vertical_and_the_second_horizontal():
    x = torch.zeros(1, 1, 3, 4)
    x[0, 0, 0, 0] = 1
    assert circular_shift(x, 2, 1).nonzero().tolist() == [[0, 0, 2, 1]]


@pytest.mark.parametrize("sizes", [(7,), (5, 6), (3, 4, 5)])
def test_every_value_lands_where_the_definition_says(sizes, generator):
    x = torch.randn(2, 3, *sizes, generator=generator)
    for shift in all_shifts(sizes):
        shifted = circular_shift(x, *shift)
        assert shifted.shape == x.shape
        for position in all_shifts(sizes):
            moved = [(p + d) % n for p, d, n in zip(position, shift, sizes, strict=True)]
            assert torch.equal(shifted[(..., *moved)], x[(..., *position)])


@given(st.integers(-40, 40), st.integers(-40, 40), st.integers(-40, 40), st.integers(-40, 40))
def test_shifts_add_up_wrap_around_and_undo(dy, dx, ey, ex):
    x = torch.arange(2 * 3 * 5 * 7).view(2, 3, 5, 7)
    once = circular_shift(x, dy, dx)
    assert torch.equal(circular_shift(once, ey, ex), circular_shift(x, dy + ey, dx + ex))
    assert torch.equal(circular_shift(once, -dy, -dx), x)
    assert torch.equal(circular_shift(x, dy + 5, dx - 7), once)


def test_no_shift_and_a_full_turn_change_nothing(x):
    assert torch.equal(circular_shift(x, 0, 0), x)
    assert torch.equal(circular_shift(x, *x.shape[2:]), x)


def test_the_input_is_left_alone(x):
    before = x.clone()
    circular_shift(x, 1, 2).zero_()
    assert torch.equal(x, before)


def test_only_the_last_axes_move(x):
    assert torch.equal(circular_shift(x, 3), x.roll(3, -1))
    assert torch.equal(circular_shift(x[0, 0], 1, 2), circular_shift(x, 1, 2)[0, 0])


def test_labels_and_empty_batches_shift_too():
    labels = torch.tensor([[True, False], [False, False]])
    assert circular_shift(labels, 1, 1).tolist() == [[False, False], [False, True]]
    assert circular_shift(torch.zeros(0, 3, 4, 5), 1, 1).shape == (0, 3, 4, 5)


def test_gradient_shifts_back(x):
    leaf, weights = x.clone().requires_grad_(), torch.randn_like(x)
    (circular_shift(leaf, 5, -2) * weights).sum().backward()
    assert torch.equal(leaf.grad, circular_shift(weights, -5, 2))


@pytest.mark.parametrize("offsets", [(), (1, 1, 1)])
def test_the_number_of_offsets_must_fit(offsets):
    message = rf"pass one offset per spatial axis, got {len(offsets)} offsets for .* \(4, 5\)"
    with pytest.raises(ValueError, match=message):
        circular_shift(torch.zeros(4, 5), *offsets)


@pytest.mark.parametrize("sizes", [(9, 7), (8, 11)])
def test_a_standard_shift_is_a_circular_one_seen_through_the_centre(sizes, generator):
    x = torch.randn(2, 3, *sizes, generator=generator)
    size = (sizes[0] - 4, sizes[1] - 4)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            seen = standard_shift(x, size, dy, dx)
            moved = circular_shift(x, dy, dx)[..., 2:-2, 2:-2]
            assert torch.equal(seen, moved)


def test_256_seen_through_224_moves_by_16_either_way():
    x = torch.zeros(1, 256, 256)
    for offset in (-16, 16):
        assert standard_shift(x, 224, offset, -offset).shape == (1, 224, 224)
    with pytest.raises(ValueError, match=r"moved by \(0, 17\) leaves the image .* at least 258"):
        standard_shift(x, 224, 0, 17)
    with pytest.raises(ValueError, match=r"moved by \(-17, 0\) leaves the image .* at least 257"):
        standard_shift(x, 224, -17, 0)
    assert standard_shift(torch.zeros(257, 257), 224, -17, 0).shape == (224, 224)
    assert standard_shift(torch.zeros(258, 258), 224, 0, 17).shape == (224, 224)


@pytest.mark.parametrize(
    ("size", "offsets", "message"),
    [
        (3, (), "one offset per spatial axis, got 0"),
        (3, (0, 0, 0), "one offset per spatial axis, got 3"),
        ((3, 3, 3), (0, 0), "size must be an integer >= 1, or one per axis"),
        (0, (0, 0), "size must be an integer >= 1, or one per axis, got 0 for 2 axes"),
        (9, (0, 0), r"a crop of \(9, 9\) moved by \(0, 0\) leaves the image of size \(8, 8\)"),
    ],
)
def test_standard_shifts_that_cannot_be_are_refused(size, offsets, message):
    with pytest.raises(ValueError, match=message):
        standard_shift(torch.zeros(8, 8), size, *offsets)


@given(*[st.integers(-3, 3)] * 4)
def test_the_common_region_shows_the_same_content_and_all_of_it(dy, dx, ey, ex):
    x = torch.arange(2 * 12 * 13).view(2, 12, 13)
    a, b = standard_shift(x, (6, 7), dy, dx), standard_shift(x, (6, 7), ey, ex)
    common_a, common_b = common_region(a, b, (dy, dx), (ey, ex))
    assert torch.equal(common_a, common_b)
    both = set(a.flatten().tolist()) & set(b.flatten().tolist())
    assert set(common_a.flatten().tolist()) == both


def test_windows_that_do_not_meet_have_nothing_in_common():
    a, b = common_region(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), (9, 0), (0, 0))
    assert a.shape == b.shape == (2, 0, 4)


def test_the_common_region_needs_equal_sizes():
    with pytest.raises(ValueError, match="same spatial sizes and one offset per axis"):
        common_region(torch.zeros(4, 4), torch.zeros(4, 5), (0, 0), (0, 0))
    with pytest.raises(ValueError, match="same spatial sizes and one offset per axis"):
        common_region(torch.zeros(4, 4), torch.zeros(4, 4), (0, 0), (0,))


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, 2), (4, 3), (-4, 1), (8, 10), (2, -5)])
def test_a_shift_keeps_the_memory_format(shift):
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    moved = circular_shift(x, *shift)
    assert moved.stride() == x.stride()
    assert torch.equal(moved, x.contiguous().roll(shift, (2, 3)))
    assert moved.data_ptr() != x.data_ptr()


def test_a_traced_shift_serves_other_sizes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated
        traced = torch.jit.trace(lambda x: circular_shift(x, 0, 8), torch.randn(1, 1, 4, 8))
    x = torch.randn(1, 1, 4, 16)
    assert torch.equal(traced(x), x.roll(8, 3))
