"""Lemma 1, claims 1 to 4 and the equations around them, for every shift of a map.

The paper states them for one axis, stride 2 and the shift ``(T x)[n] = x[n + 1]``. With a stride
``s`` and ``d`` such shifts, ``x[s n + o + d]`` has the offset ``(o + d) mod s`` and lies
``(o + d) div s`` further on the coarse grid; several axes do so independently.
"""

import math

import pytest
import torch
from helpers import (
    all_shifts,
    assert_circularly_equivariant,
    oracle_split,
    phase_index,
    phase_offsets,
    steps_of,
)
from torch import nn

import trueshift as ts
from trueshift.functional import order_free_mean, polyphase_split
from trueshift.shifts import circular_shift
from trueshift.ties import argmax_phase

CHANNELS = 8
MAPS = {
    "1d, stride 2": ((14,), 2),
    "1d, stride 3": ((15,), 3),
    "2d, stride 2": ((6, 10), 2),
    "2d, stride 3": ((9, 6), 3),
    "2d, stride (2, 3)": ((10, 9), (2, 3)),
    "3d, stride (1, 2, 3)": ((3, 6, 3), (1, 2, 3)),
}
every_map = pytest.mark.parametrize(("sizes", "stride"), MAPS.values(), ids=MAPS)


def T(x, d):
    """The paper's shift, ``d`` times per axis."""
    return circular_shift(x, *(-n for n in d))


def landing(offset, d, stride):
    """Offset and coarse position of ``s n + o + d``, per axis."""
    sums = [o + n for o, n in zip(offset, d, strict=True)]
    steps = steps_of(stride, len(offset))
    wrapped = tuple(total % step for total, step in zip(sums, steps, strict=True))
    turns = tuple(total // step for total, step in zip(sums, steps, strict=True))
    return wrapped, turns


def pi(k, d, stride):
    """Index, in ``T^d x``, of the component that has the index ``k`` in ``x``."""
    offset = phase_offsets(stride, len(d))[k]
    moved, _ = landing(offset, [-n for n in d], stride)
    return phase_index(moved, steps_of(stride, len(d)))


def some_map(sizes, generator, batch=2):
    return torch.randn(batch, CHANNELS, *sizes, generator=generator)


class InvariantScore(nn.Module):
    """A selector from any shift-invariant score of a component; shift-permutation-equivariant."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, x, stride):
        return torch.stack([self.score(c) for c in polyphase_split(x, stride).unbind(1)], dim=1)

    def choose(self, x, stride):
        return argmax_phase(self(x, stride), x, steps_of(stride, x.ndim - 2))


def _mean(y):
    return order_free_mean(y, tuple(range(1, y.ndim)))


def selectors(dim):
    return {
        "learned": ts.ConvSelector(CHANNELS, dim=dim).eval(),
        "largest norm": ts.NormSelector(2).eval(),
        "smallest norm": InvariantScore(lambda y: -_mean(y.square())),
        "mean of a sine": InvariantScore(lambda y: _mean((7 * y).sin())),
        "largest value": InvariantScore(lambda y: y.flatten(1).amax(1)),
    }


every_selector = pytest.mark.parametrize("name", selectors(1))


@every_map
def test_section_3_shift_operator(sizes, stride, generator):
    x = some_map(sizes, generator)
    for d in all_shifts(sizes):
        shifted = T(x, d)
        for n in all_shifts(sizes):
            source = [(i + j) % size for i, j, size in zip(n, d, sizes, strict=True)]
            assert torch.equal(shifted[(..., *n)], x[(..., *source)])


@every_map
def test_section_3_global_pooling_of_an_equivariant_map_is_invariant(sizes, stride, generator):
    x = some_map(sizes, generator)
    pool = ts.GlobalAvgPool().eval()
    for d in all_shifts(sizes):
        assert torch.equal(pool(T(x, d)), pool(x))


@every_map
def test_section_3_plain_downsampling_is_not_equivariant(sizes, stride, generator):
    x = some_map(sizes, generator)
    down = ts.PolyphaseDown(ts.FixedSelector(0), stride)
    one = (0,) * (len(sizes) - 1) + (1,)
    y, shifted = down(x), down(T(x, one))
    assert not any(torch.equal(shifted, T(y, d)) for d in all_shifts(y.shape[2:]))


def test_section_3_aps_keeps_the_component_of_the_larger_norm():
    x = torch.tensor([[[1.0, -2.0, 1.0, 2.0]], [[3.0, 0.0, -3.0, 4.0]]])
    y, phase = ts.APS(1, dim=1).eval()(x, return_phase=True)
    assert phase.tolist() == [1, 0]
    assert y.tolist() == [[[-2.0, 2.0]], [[3.0, -3.0]]]


def test_lemma_1_as_printed(generator):
    x = torch.randn(1, CHANNELS, 14, generator=generator)
    poly, poly_shifted = polyphase_split(x, 2), polyphase_split(T(x, (1,)), 2)
    assert torch.equal(poly_shifted[:, 0], poly[:, 1])
    assert torch.equal(poly_shifted[:, 1], T(poly[:, 0], (1,)))


@every_map
def test_lemma_1_polyphase_shift_permutation(sizes, stride, generator):
    x = some_map(sizes, generator)
    components = polyphase_split(x, stride)
    for d in all_shifts(sizes):
        shifted = polyphase_split(T(x, d), stride)
        for k, offset in enumerate(phase_offsets(stride, len(sizes))):
            source, turns = landing(offset, d, stride)
            component = components[:, phase_index(source, steps_of(stride, len(sizes)))]
            assert torch.equal(shifted[:, k], T(component, turns))


@every_map
def test_lemma_1_permutes(sizes, stride, generator):
    num_phases = math.prod(steps_of(stride, len(sizes)))
    for d in all_shifts(sizes):
        moved = [pi(k, d, stride) for k in range(num_phases)]
        assert sorted(moved) == list(range(num_phases))


@every_map
@every_selector
def test_claim_1_lpd_is_shift_equivariant(sizes, stride, name, generator):
    x = some_map(sizes, generator)
    down = ts.PolyphaseDown(selectors(len(sizes))[name], stride).eval()
    y, phase = down(x, return_phase=True)
    for d in all_shifts(sizes):
        y_shifted, phase_shifted = down(T(x, d), return_phase=True)
        assert phase_shifted.tolist() == [pi(k, d, stride) for k in phase.tolist()]
        for b, k in enumerate(phase_shifted.tolist()):
            offset = phase_offsets(stride, len(sizes))[k]
            _, turns = landing(offset, d, stride)  # of T_M; 0 or 1 for a shift by one
            assert torch.equal(y_shifted[b], T(y[b], turns))


@pytest.mark.parametrize("p", [1, 2, math.inf])
@every_map
def test_claim_2_lpd_generalizes_aps(sizes, stride, p, generator):
    def probability(x):  # equation 16: softmax of the norms
        norms = oracle_split(x, stride).flatten(2).double().norm(p, dim=2)
        return norms.softmax(1)

    class Norms(nn.Module):
        def choose(self, x, stride):
            return argmax_phase(probability(x), x, steps_of(stride, x.ndim - 2))

    x = some_map(sizes, generator, batch=8)
    expected, aps_phase = ts.APS(CHANNELS, p, stride, dim=len(sizes)).eval()(x, return_phase=True)
    y, phase = ts.PolyphaseDown(Norms(), stride)(x, return_phase=True)
    assert torch.equal(phase, aps_phase)
    assert torch.equal(y, expected)
    assert len(phase.unique()) > 1


@every_map
def test_claim_2_with_weights_of_the_learned_selector(sizes, stride, generator):
    # relu(x) + relu(-x) = |x|: two identities in conv1, a sum in conv2, and f_theta is an l1 norm.
    dim = len(sizes)
    lpd = ts.LPD(CHANNELS, 2 * CHANNELS, stride, dim=dim).eval()
    centre = (slice(None), slice(None), *[1] * dim)
    with torch.no_grad():
        for parameter in lpd.selector.parameters():
            parameter.zero_()
        identity = torch.eye(CHANNELS)
        lpd.selector.conv1.weight[centre] = torch.cat([identity, -identity])
        lpd.selector.conv2.weight[centre] = 1.0
    x = some_map(sizes, generator, batch=8)
    y, phase = lpd(x, return_phase=True)
    expected, aps_phase = ts.APS(CHANNELS, 1, stride, dim=dim).eval()(x, return_phase=True)
    assert torch.equal(phase, aps_phase)
    assert torch.equal(y, expected)


@every_map
@every_selector
def test_claim_3_p_theta_is_shift_permutation_equivariant(sizes, stride, name, generator):
    x = some_map(sizes, generator)
    selector = selectors(len(sizes))[name]
    p = selector(x, stride).softmax(1)
    for d in all_shifts(sizes):
        shifted = selector(T(x, d), stride).softmax(1)
        moved = [pi(k, d, stride) for k in range(p.shape[1])]
        torch.testing.assert_close(shifted[:, moved], p, rtol=1e-6, atol=0)


@every_map
@every_selector
def test_claim_3_the_logits_permute_bit_by_bit(sizes, stride, name, generator):
    x = some_map(sizes, generator)
    selector = selectors(len(sizes))[name]
    logits = selector(x, stride)
    for d in all_shifts(sizes):
        moved = [pi(k, d, stride) for k in range(logits.shape[1])]
        assert torch.equal(selector(T(x, d), stride)[:, moved], logits)


@every_map
def test_claim_3_holds_while_training(sizes, stride, generator):
    x = some_map(sizes, generator)
    selector = ts.ConvSelector(CHANNELS, 4, dim=len(sizes), train_rule="softmax").train()
    p = selector.choose(x, stride)
    for d in all_shifts(sizes):
        moved = [pi(k, d, stride) for k in range(p.shape[1])]
        torch.testing.assert_close(selector.choose(T(x, d), stride)[:, moved], p)


@every_map
def test_claim_3_needs_an_invariant_f_theta(sizes, stride, generator):
    x = some_map(sizes, generator)
    first_value = InvariantScore(lambda y: y.flatten(1)[:, 0])  # depends on the position
    logits = first_value(x, stride)
    changed = []
    for d in all_shifts(sizes):
        moved = [pi(k, d, stride) for k in range(logits.shape[1])]
        changed.append(not torch.equal(first_value(T(x, d), stride)[:, moved], logits))
    assert any(changed)


@every_map
@pytest.mark.parametrize("training", [False, True])
def test_section_4_2_f_theta_is_a_convolutional_mean(sizes, stride, training, generator):
    x = some_map(sizes, generator)
    selector = ts.ConvSelector(CHANNELS, 5, dim=len(sizes)).train(training)
    components = oracle_split(x, stride)
    for k, component in enumerate(components.unbind(1)):
        f = selector.conv2(selector.conv1(component).relu()).flatten(1).mean(1)
        torch.testing.assert_close(selector(x, stride)[:, k], f)


@every_map
def test_section_4_training_keeps_convex_combinations(sizes, stride, generator):
    x = some_map(sizes, generator)
    lpd = ts.LPD(CHANNELS, 4, stride, dim=len(sizes)).train()
    lpu = ts.LPU(CHANNELS, stride, dim=len(sizes)).train()
    y, z = lpd(x, return_phase=True)
    torch.testing.assert_close(z.sum(1), torch.ones(2))
    assert bool(((z >= 0) & (z <= 1)).all())
    weights = z[(..., *[None] * (x.ndim - 1))]
    torch.testing.assert_close(y, (oracle_split(x, stride) * weights).sum(1))
    torch.testing.assert_close(oracle_split(lpu(y, z), stride), y[:, None] * weights)


@every_map
@every_selector
def test_claim_4_lpu_after_lpd_is_shift_equivariant(sizes, stride, name, generator):
    x = some_map(sizes, generator)
    lpd = ts.PolyphaseDown(selectors(len(sizes))[name], stride).eval()
    lpu = ts.LPU(CHANNELS, stride, dim=len(sizes))
    assert_circularly_equivariant(
        lambda x: lpu(*lpd(x, return_phase=True)),
        x,
        [tuple(-n for n in d) for d in all_shifts(sizes)],
    )


@every_map
@pytest.mark.parametrize("antialias", ["rect2", "tri3", "adapt3"])
def test_claim_4_with_low_pass_filters(sizes, stride, antialias, generator):
    x = some_map(sizes, generator)
    settings = {"stride": stride, "antialias": antialias, "dim": len(sizes), "groups": 4}
    lpd = ts.LPD(CHANNELS, 4, **settings).eval()
    lpu = ts.LPU(CHANNELS, **settings).eval()
    with torch.inference_mode():
        assert_circularly_equivariant(
            lambda x: lpu(*lpd(x, return_phase=True)), x, all_shifts(sizes)
        )


@every_map
def test_claim_4_does_not_hold_for_plain_strides(sizes, stride, generator):
    x = some_map(sizes, generator)
    down = ts.PolyphaseDown(ts.FixedSelector(0), stride)
    up = ts.PolyphaseUp(stride)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_circularly_equivariant(
            lambda x: up(*down(x, return_phase=True)), x, all_shifts(sizes)
        )


@every_map
@every_selector
def test_appendix_proof_lpu_lpd_masks_components(sizes, stride, name, generator):
    x = some_map(sizes, generator)
    lpd = ts.PolyphaseDown(selectors(len(sizes))[name], stride).eval()
    lpu = ts.LPU(CHANNELS, stride, dim=len(sizes))
    for d in all_shifts(sizes):
        shifted = T(x, d)
        y, phase = lpd(shifted, return_phase=True)
        components, kept = oracle_split(shifted, stride), oracle_split(lpu(y, phase), stride)
        for b, k_star in enumerate(phase.tolist()):
            for j in range(components.shape[1]):
                if j == k_star:
                    assert torch.equal(kept[b, j], components[b, j])
                else:
                    assert not kept[b, j].any()
