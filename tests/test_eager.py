import pytest
import torch

from trueshift import Sampling
from trueshift._eager import faster_layout, only_result
from trueshift.models import resnet9

LAST = torch.channels_last


def test_only_result():
    assert not only_result()
    with torch.no_grad():
        assert only_result()


@torch.no_grad()
def test_batches_of_images_take_the_faster_layout():
    assert faster_layout(torch.randn(4, 3, 8, 8)).is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    "shape", [(1, 3, 8, 8), (3, 3, 8, 8), (4, 3, 8), (4, 3, 4, 4, 4), (0, 3, 8, 8)]
)
@torch.no_grad()
def test_other_inputs_stay_as_they_are(shape):
    x = torch.randn(shape)
    assert faster_layout(x) is x


def test_training_stays_as_it_is():
    x = torch.randn(4, 3, 8, 8)
    assert faster_layout(x) is x


def test_a_classifier_uses_it_at_test_time_only():
    seen = []
    model = resnet9(Sampling("lps")).eval()
    model.stem.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.randn(4, 3, 16, 16)
    recorded = model(x)
    with torch.no_grad():
        found, asked = model(x), model(x.contiguous(memory_format=LAST))
    assert [images.is_contiguous() for images in seen] == [True, False, False]
    assert torch.equal(found, asked)
    torch.testing.assert_close(found, recorded.detach())
