import pytest
import torch
from helpers import all_shifts
from hypothesis import given
from hypothesis import strategies as st

from trueshift.shifts import circular_shift


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
