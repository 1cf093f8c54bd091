import pytest
import torch

import trueshift as ts
from trueshift.training.calibration import calibrate, scale_logits
from trueshift.training.tau import selectors


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(8, 3, 16, 16, generator=generator).cumsum(2).cumsum(3)
    return (smooth - smooth.mean()) / smooth.std()


def network(**options):
    torch.manual_seed(0)
    spec = ts.Sampling("lps", "tri3", hidden=2)
    return ts.models.resnet9(spec, 3, stem=12, widths=(8, 8, 8), **options)


@torch.no_grad()
def test_logits_of_every_selector_differ_by_the_spread(images):
    model, seen = network(), []
    for selector in selectors(model):
        selector.register_forward_hook(lambda _, args, out: seen.append(float(out.std(1).mean())))
    model(images)
    assert max(seen) < 0.2
    statistics = [buffer.clone() for buffer in model.buffers()]
    scale_logits(model, images, spread=2.0)
    assert all(map(torch.equal, statistics, model.buffers()))
    seen.clear()
    model(images)
    assert seen[0] == pytest.approx(2.0, rel=1e-4)  # later ones see other choices before them
    assert all(1 < value < 4 for value in seen)


@torch.no_grad()
def test_the_stem_whitens_patches(images):
    model = network(whitened=True)
    calibrate(model, images)
    y = model.stem.conv(images)[:, :6].transpose(0, 1).flatten(1)  # (6, B H W)
    torch.testing.assert_close(y @ y.T / y.shape[1], torch.eye(6), atol=0.02, rtol=0)
    weight = model.stem.conv.weight
    assert torch.equal(weight[:6], -weight[6:])


@torch.no_grad()
def test_a_stem_that_is_trained_is_left_alone(images):
    model = network()
    before = model.stem.conv.weight.clone()
    calibrate(model, images)
    assert torch.equal(before, model.stem.conv.weight)


def test_whitened_networks_train_neither_stem_nor_scales_and_start_as_the_identity(images):
    model = network(whitened=True)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    scales = {n for n, _ in model.named_parameters() if n.endswith("norm.weight")}
    assert frozen == {"stem.conv.weight", *scales}
    conv = model.stages[1].residual[0].conv
    x = torch.randn(1, 8, 4, 4)
    torch.testing.assert_close(conv(x), x)


def test_an_option_without_selectors_or_whitening_changes_nothing(images):
    model = ts.models.resnet9(ts.Sampling("stride"), 3)
    before = {name: p.clone() for name, p in model.named_parameters()}
    calibrate(model, images)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
