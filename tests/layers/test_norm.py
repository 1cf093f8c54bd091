import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.layers.norm import Chain, normalize


def trained(norm):
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_overwrites_with_the_bits_of_the_norm(dtype, layout):
    norm = trained(nn.BatchNorm2d(5)).to(dtype)
    y = torch.randn(3, 5, 4, 6, dtype=dtype).contiguous(memory_format=layout)
    with torch.no_grad():
        expected = norm(y)
        found = normalize(norm, y, nn.Identity())
    assert found is y
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm3d])
def test_every_dimension_and_no_affine(kind):
    norm = kind(2, affine=False).eval()
    y = torch.randn(2, 2, *[4] * (1 if kind is nn.BatchNorm1d else 3))
    with torch.no_grad():
        assert torch.equal(norm(y), normalize(norm, y, nn.Identity()))


def test_autocast_makes_the_same():
    chain = Chain(nn.Conv2d(3, 4, 1), trained(nn.BatchNorm2d(4)), nn.ReLU()).eval()
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(chain(x), nn.Sequential(*chain)(x))


def test_training_norms_keep_their_input_and_learn():
    norm, y = nn.BatchNorm2d(2), torch.randn(2, 2, 4, 4)
    before = y.clone()
    with torch.no_grad():
        found = normalize(norm, y, nn.Identity())
    assert torch.equal(y, before)
    assert found is not y
    assert norm.num_batches_tracked == 1


def test_maps_are_kept_where_gradients_or_hooks_need_them():
    conv, norm = nn.Conv2d(1, 2, 1), trained(nn.BatchNorm2d(2))
    x = torch.randn(1, 1, 3, 3)
    y = conv(x)
    assert normalize(norm, y, conv) is not y  # gradients
    seen = []
    conv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        Chain(conv, norm)(x)
        assert torch.equal(seen[0], nn.functional.conv2d(x, conv.weight, conv.bias))


def test_a_chain_has_the_names_and_the_bits_of_a_sequence():
    layers = nn.Conv2d(3, 4, 3), trained(nn.BatchNorm2d(4)), nn.ReLU(inplace=True)
    chain, plain = Chain(*layers).eval(), nn.Sequential(*layers).eval()
    x = torch.randn(2, 3, 5, 5)
    kept = x.clone()
    assert list(chain.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(chain(x), plain(x))
    assert torch.equal(x, kept)


@pytest.mark.parametrize("build", [ts.models.resnet18, ts.models.deeplabv3plus_resnet18])
def test_networks_give_the_same_bits_with_and_without_overwriting(build):
    net = build(ts.Sampling("lps", hidden="eighth"), 3).eval()
    x = torch.randn(2, 3, 32, 32)
    kept = x.clone()
    with_grad = net(x).detach()
    with torch.no_grad():
        assert torch.equal(net(x), with_grad)
    assert torch.equal(x, kept)
