"""The guarantees that the package makes, each with its condition, at the level of networks.

1. Exact: with circular padding and sizes that the total stride divides, the output for every
   circular shift is the same (or the shifted one) bit by bit.
2. Ties: the same holds where scores tie.
3. Loud: a size that the stride does not divide is an error.
4. Any batch: a step of training on two processes (types, layouts and copies are tested per layer).

What torch's own convolutions do is outside of the package: for a single image (a batch of one) they
give a pixel other bits at the end of a row than inside it if the map has 3 channels, channels last,
or only a few pixels. So single images are tested with 8 channels and with sizes that avoid this.
"""

import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import all_shifts, is_circular_shift_of
from networks import SPECS, Classifier, EncoderDecoder, trained
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trueshift as ts
from trueshift._cpu.conditions import limits
from trueshift.shifts import circular_shift

FORMATS = {"default": torch.contiguous_format, "channels last": torch.channels_last}
CIRCULAR_METHODS = [name for name in SPECS if not name.startswith("stride")]


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _one_thread():
    """Run on one thread: small maps are fastest so, and other tests may be running beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def every_shift(x):
    """All shifts of one image, as one batch in row-major order."""
    return torch.cat([circular_shift(x, *shift) for shift in all_shifts(x.shape[2:])])


def build(kind, name, memory_format=torch.contiguous_format, in_channels=3):
    network = trained(kind(SPECS[name], in_channels))
    return network.to(memory_format=memory_format)


@torch.inference_mode()
def outputs_of_every_shift(network, x, memory_format=torch.contiguous_format):
    return network(every_shift(x).contiguous(memory_format=memory_format))


@torch.inference_mode()
def outputs_one_by_one(network, x, memory_format=torch.contiguous_format):
    """Outputs for every shift of a batch, the whole batch shifted alike."""
    moved = (circular_shift(x, *shift) for shift in all_shifts(x.shape[2:]))
    return [network(m.contiguous(memory_format=memory_format)) for m in moved]


class TestExact:
    @pytest.mark.parametrize("layout", FORMATS)
    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_a_classifier_gives_equal_bits_for_all_shifts_in_one_batch(self, name, layout):
        network = build(Classifier, name, FORMATS[layout])
        for sizes in ((8, 16), (24, 8), (16, 24)):
            y = outputs_of_every_shift(network, torch.randn(1, 3, *sizes), FORMATS[layout])
            assert torch.equal(y, y[:1].expand_as(y)), f"differs for {sizes}"
            assert torch.isfinite(y).all()

    @pytest.mark.usefixtures("_two_threads")
    @pytest.mark.parametrize("layout", FORMATS)
    @pytest.mark.parametrize("name", ["lps", "aps+rect2", "lps+adapt3"])
    @torch.inference_mode()
    def test_two_threads(self, name, layout):
        x = torch.randn(1, 8, 8, 16)
        images = every_shift(x).contiguous(memory_format=FORMATS[layout])
        classifier = build(Classifier, name, FORMATS[layout], in_channels=8)
        y = classifier(images)
        assert torch.equal(y, y[:1].expand_as(y))
        first, *others = (classifier(image[None]) for image in images[::37])
        assert all(torch.equal(first, y) for y in others)
        z = build(EncoderDecoder, name, FORMATS[layout], in_channels=8)(images)
        assert torch.equal(z, every_shift(z[:1]))

    @pytest.mark.parametrize("layout", FORMATS)
    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_a_classifier_gives_equal_bits_for_batches_shifted_together(self, name, layout):
        for shape in ((1, 8, 16, 8), (3, 3, 8, 16)):
            network = build(Classifier, name, FORMATS[layout], in_channels=shape[1])
            first, *others = outputs_one_by_one(network, torch.randn(shape), FORMATS[layout])
            assert all(torch.equal(first, y) for y in others)
        assert not torch.equal(first[0], first[1])

    @pytest.mark.parametrize("layout", FORMATS)
    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_a_segmenter_gives_the_shifted_bits(self, name, layout):
        network = build(EncoderDecoder, name, FORMATS[layout])
        for sizes in ((8, 12), (4, 16), (20, 8)):
            y = outputs_of_every_shift(network, torch.randn(1, 3, *sizes), FORMATS[layout])
            assert torch.equal(y, every_shift(y[:1])), f"differs for {sizes}"

    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_gradients_being_recorded_changes_nothing(self, name):
        network = build(Classifier, name)
        y = network(every_shift(torch.randn(1, 3, 8, 16)).requires_grad_())
        assert y.requires_grad
        assert torch.equal(y, y[:1].expand_as(y))

    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_bfloat16(self, name):
        x = torch.randn(1, 3, 8, 16, dtype=torch.bfloat16)
        y = outputs_of_every_shift(build(Classifier, name).bfloat16(), x)
        assert torch.equal(y, y[:1].expand_as(y))
        z = outputs_of_every_shift(build(EncoderDecoder, name).bfloat16(), x)
        assert torch.equal(z, every_shift(z[:1]))

    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_float64_is_equal_up_to_rounding(self, name):
        # torch's convolutions in float64 are matrix products, whose rounding depends on the place.
        x = torch.randn(1, 3, 8, 16, dtype=torch.float64)
        y = outputs_of_every_shift(build(Classifier, name).double(), x)
        torch.testing.assert_close(y, y[:1].expand_as(y), rtol=1e-12, atol=1e-12)
        z = outputs_of_every_shift(build(EncoderDecoder, name).double(), x)
        torch.testing.assert_close(z, every_shift(z[:1]), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("name", ["lps+tri3", "lps+adapt3"])
    def test_autocast(self, name):
        network = build(Classifier, name)
        with torch.autocast("cpu", torch.bfloat16):
            y = outputs_of_every_shift(network, torch.randn(1, 3, 8, 16))
        assert torch.equal(y, y[:1].expand_as(y))

    @pytest.mark.parametrize("stride", [2, 3, (2, 3)])
    def test_other_strides(self, stride):
        spec = ts.Sampling("lps", "tri3", hidden=4)
        stage = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            spec.down(8, stride),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            spec.down(8, stride),
            ts.GlobalAvgPool(),
        ).eval()
        y = outputs_of_every_shift(stage, torch.randn(1, 3, 36, 36))
        assert torch.equal(y, y[:1].expand_as(y))

    @pytest.mark.parametrize("antialias", [None, "tri3", "adapt3"])
    def test_plain_strides_are_not_invariant(self, antialias):
        spec = ts.Sampling("stride", antialias, groups=4)
        y = outputs_of_every_shift(trained(Classifier(spec)), torch.randn(1, 3, 16, 24))
        assert (y - y[:1]).abs().max() > 1e-4
        z = outputs_of_every_shift(trained(EncoderDecoder(spec)), torch.randn(1, 3, 8, 12))
        assert (z - every_shift(z[:1])).abs().max() > 1e-4

    @pytest.mark.parametrize("name", ["lps", "aps"])
    def test_plain_pooling_is_not_exact(self, name):
        network = build(Classifier, name)
        network.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        y = outputs_of_every_shift(network, torch.randn(1, 3, 32, 40))
        assert not torch.equal(y, y[:1].expand_as(y))
        torch.testing.assert_close(y, y[:1].expand_as(y))


class TestExactLayers:
    """Each layer on its own, at shapes where rounding is known to depend on the position."""

    SIZES = ((2, 2), (4, 2), (4, 6), (6, 10), (14, 14), (16, 24))

    @staticmethod
    def layers(channels):
        groups = 8 if channels % 8 == 0 else 1
        return {
            "conv selector": ts.ConvSelector(channels, max(1, channels // 2)),
            "1-norm": ts.NormSelector(1),
            "2-norm": ts.NormSelector(2),
            "tri3": ts.Blur(channels, 3),
            "bin4": ts.Blur(channels, 4),
            "adapt3": ts.AdaptiveBlur(channels, 3, groups),
            "pool": ts.GlobalAvgPool(),
        }

    @staticmethod
    def moved_output(y, shift):
        """What the output for a shifted map must be: logits permute, maps shift, means stay."""
        if y.ndim == 4:
            return circular_shift(y, *shift)
        return y.unflatten(1, (2, 2)).roll(shift, (1, 2)).flatten(1)

    @pytest.mark.parametrize("layout", FORMATS)
    @pytest.mark.parametrize("batch", [1, 2, 5])
    @pytest.mark.parametrize("channels", [1, 3, 16, 64])
    @torch.inference_mode()
    def test_every_layer_gives_every_pixel_the_same_bits(self, channels, batch, layout):
        layers = self.layers(channels)
        for sizes in self.SIZES:
            x = torch.randn(batch, channels, *sizes)
            images = {
                shift: circular_shift(x, *shift).contiguous(memory_format=FORMATS[layout])
                for shift in ((0, 0), (0, 1), (1, 0), (1, 1), (3, 2), (2, 5))
            }
            for name, layer in layers.items():
                y = layer.eval()(images[0, 0])
                for shift, image in images.items():
                    expected = y if name == "pool" else self.moved_output(y, shift)
                    assert torch.equal(layer(image), expected), f"{name}, {sizes}, {shift}"

    @pytest.mark.parametrize("build", [ts.LPD, ts.APS])
    @torch.inference_mode()
    def test_a_batch_that_is_worked_on_in_parts(self, build):
        layer = build(16).eval()
        x = torch.randn(1, 16, 14, 10)
        shifts = all_shifts((14, 10))[::11]
        assert len(shifts) % 4 == 1
        with limits(chunk=4 * x.numel()):  # 4 + 4 + 4 + 1 images
            logits = layer.selector(torch.cat([circular_shift(x, *shift) for shift in shifts]))
        for shift, row in zip(shifts, logits, strict=True):
            assert torch.equal(row, self.moved_output(logits[:1], shift)[0]), f"shift {shift}"


def pointwise(selector):
    """Keep only the centre of the first convolution: the score then ignores the order of pixels."""
    with torch.no_grad():
        kept = selector.conv1.weight[..., 1, 1].clone()
        selector.conv1.weight.zero_()[..., 1, 1] = kept
    return selector


def dead(selector):
    """Set all weights to zero: all logits are equal for every map."""
    for parameter in selector.parameters():
        nn.init.zeros_(parameter)
    return selector


SELECTORS = {
    "lps": lambda channels, dim=2: ts.ConvSelector(channels, 4, dim=dim),
    "lps, dead": lambda channels, dim=2: dead(ts.ConvSelector(channels, 4, dim=dim)),
    "aps, p=1": lambda channels, dim=2: ts.NormSelector(1),
    "aps, p=2": lambda channels, dim=2: ts.NormSelector(2),
    "aps, p=inf": lambda channels, dim=2: ts.NormSelector(math.inf),
}


def tied_maps(channels):
    """Maps on which scores tie, by name; sizes 12 x 12."""
    rows = torch.arange(12.0)
    grid = rows[:, None] + 0 * rows
    one_hot = torch.zeros(12, 12)
    one_hot[3, 6] = 1
    block = torch.zeros(12, 12)
    block[2:4, 4:6] = 1
    maps = {
        "constant": torch.ones(12, 12),
        "zero": torch.zeros(12, 12),
        "one-hot": one_hot,
        "a 2 x 2 block": block,
        "checkerboard": (grid + grid.t()) % 2,
        "stripes of 2": (grid // 2) % 2,
        "period 3": (grid + 2 * grid.t()) % 3,
        "enlarged pixels": torch.randn(6, 6).repeat_interleave(2, 0).repeat_interleave(2, 1),
    }
    scale = torch.arange(1.0, channels + 1).view(1, -1, 1, 1)
    return {name: scale * image for name, image in maps.items()}


def moves_off_the_grid(shift, stride):
    return any(d % stride for d in shift)


class TestTies:
    @pytest.mark.parametrize("stride", [2, 3])
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("name", SELECTORS)
    def test_there_and_back(self, name, channels, stride):
        down = ts.PolyphaseDown(SELECTORS[name](channels), stride).eval()
        up = ts.PolyphaseUp(stride)
        for kind, x in tied_maps(channels).items():
            images = every_shift(x)
            y, phase = down(images, return_phase=True)
            u = up(y, phase)
            symmetric = any(
                moves_off_the_grid(shift, stride) and torch.equal(image, x[0])
                for shift, image in zip(all_shifts((12, 12)), images, strict=True)
            )
            if symmetric:  # no rule can place such a map where the shift says
                assert all(is_circular_shift_of(kept, y[0]) for kept in y), kind
            else:
                assert torch.equal(u, every_shift(u[:1])), kind

    @pytest.mark.parametrize("sizes", [(2,), (4,), (8,), (2, 2), (2, 4)])
    @pytest.mark.parametrize("name", SELECTORS)
    def test_every_tiny_binary_map_of_one_channel(self, name, sizes):
        down = ts.PolyphaseDown(SELECTORS[name](1, dim=len(sizes))).eval()
        up = ts.PolyphaseUp()
        values = [torch.tensor([0.0, 1.0])] * math.prod(sizes)
        x = torch.cartesian_prod(*values).view(-1, 1, *sizes)

        def there_and_back(x):
            return up(*down(x, return_phase=True))

        def equal(a, b):
            return (a == b).flatten(1).all(1)

        symmetric = torch.zeros(len(x), dtype=torch.bool)
        for shift in all_shifts(sizes):
            if moves_off_the_grid(shift, 2):
                symmetric |= equal(circular_shift(x, *shift), x)
        assert 0 < symmetric.sum() < len(x)
        u = there_and_back(x)
        for shift in all_shifts(sizes):
            moved = there_and_back(circular_shift(x, *shift))
            assert (equal(moved, circular_shift(u, *shift)) | symmetric).all(), f"shift {shift}"

    @pytest.mark.parametrize("sizes", [(8, 12), (28, 28)])
    @pytest.mark.parametrize("name", ["lps", "aps, p=1", "aps, p=2"])
    def test_components_that_hold_the_same_pixels_in_another_order(self, name, sizes):
        # Their scores are equal, but sums that round see a difference that depends on the order.
        coarse = (
            torch.randn(1, 16, *(size // 2 for size in sizes))
            * torch.logspace(-2, 2, 16)[:, None, None]
        )
        orders = [coarse.flatten(2)[..., torch.randperm(coarse[0, 0].numel())] for _ in range(4)]
        components = torch.stack(orders, dim=1).unflatten(3, coarse.shape[2:])
        x = ts.functional.polyphase_merge(components, 2)
        selector = SELECTORS[name](16)
        down = ts.PolyphaseDown(pointwise(selector) if name == "lps" else selector).eval()
        up = ts.PolyphaseUp()
        u = up(*down(x, return_phase=True))
        shifts = [(0, 1), (1, 0), (1, 1), (2, 3), (5, 4), (7, 7)]
        for shift in shifts:
            moved = up(*down(circular_shift(x, *shift), return_phase=True))
            assert torch.equal(moved, circular_shift(u, *shift)), f"shift {shift}"
        together = torch.cat([circular_shift(x, *shift) for shift in shifts])
        expected = torch.cat([circular_shift(u, *shift) for shift in shifts])
        assert torch.equal(up(*down(together, return_phase=True)), expected)

    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_a_classifier_on_maps_that_tie(self, name):
        network = build(Classifier, name)
        for kind, x in tied_maps(3).items():
            x = nn.functional.pad(x, (0, 4, 0, 4))  # to 16 x 16, which the total stride divides
            y = outputs_of_every_shift(network, x)
            assert torch.equal(y, y[:1].expand_as(y)), kind

    @pytest.mark.parametrize("name", ["lps", "lps+tri3", "lps+adapt3"])
    def test_a_classifier_with_dead_selectors(self, name):
        network = build(Classifier, name)
        for module in network.modules():
            if isinstance(module, ts.ConvSelector):
                dead(module)
        y = outputs_of_every_shift(network, torch.randn(1, 3, 16, 8))
        assert torch.equal(y, y[:1].expand_as(y))


class TestLoud:
    @pytest.mark.parametrize("name", CIRCULAR_METHODS)
    def test_a_size_that_the_stride_does_not_divide_is_an_error(self, name):
        network = build(Classifier, name)
        message = (
            r"PolyphaseDown: spatial sizes must be divisible by stride=2, got x of shape"
            r" \(1, 16, 9, 4\)\. Pad to \(10, 4\) or crop to \(8, 4\)\."
        )
        down = network.stages[2].down
        with pytest.raises(ValueError, match=message):
            down(torch.randn(1, 16, 9, 4))
        with pytest.raises(ValueError, match=r"must be divisible by stride=2"):
            network(torch.randn(1, 3, 30, 32))  # 30 -> 15, which 2 does not divide

    @pytest.mark.parametrize("name", ["lps", "aps+rect2", "lps+adapt3"])
    def test_a_follower_refuses_it_too(self, name):
        follow = SPECS[name].follow(8)
        with pytest.raises(ValueError, match=r"Pad to \(6, 8\) or crop to \(4, 8\)\."):
            follow(torch.randn(1, 8, 5, 8), phase=torch.zeros(1, dtype=torch.int64))

    def test_without_circular_padding_it_is_legal(self):
        spec = ts.Sampling("lps", "tri3", padding_mode="zeros")
        assert spec.down(8).eval()(torch.randn(1, 8, 9, 5)).shape == (1, 8, 5, 3)


def smooth_network():
    """A network without random draws or batch statistics: the batch may be split at will."""
    spec = ts.Sampling("lps", "tri3", hidden=4, train_rule="softmax")
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        spec.down(8),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        spec.down(8),
        ts.GlobalAvgPool(),
        nn.Linear(8, 5),
    )


def data_of_rank(rank):
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(4, 3, 8, 8, generator=generator)
    return x, torch.randint(5, (4,), generator=generator)


def train_on_one_rank(rank, world_size, folder):
    """Take one step of two networks; save the gradients and the weights after the step."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    torch.manual_seed(0)
    networks = {"smooth": smooth_network(), "sampled": Classifier(SPECS["lps+adapt3"])}
    x, labels = data_of_rank(rank)
    result = {}
    for name, network in networks.items():
        parallel = DistributedDataParallel(network.train())
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        torch.manual_seed(rank)  # every rank draws its own samples
        loss = nn.functional.cross_entropy(parallel(x), labels)
        loss.backward()
        optimizer.step()
        result[name] = {
            "loss": loss.item(),
            "grads": {key: p.grad for key, p in network.named_parameters()},
            "weights": {key: p.detach() for key, p in network.named_parameters()},
        }
    torch.save(result, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


class TestTwoProcesses:
    def test_a_step_of_training_agrees_between_ranks_and_with_the_joint_batch(self, tmp_path):
        mp.spawn(train_on_one_rank, args=(2, str(tmp_path)), nprocs=2)
        first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
        for name in ("smooth", "sampled"):
            assert first[name]["loss"] != second[name]["loss"]
            assert any("selector.conv1.weight" in key for key in first[name]["grads"])
            for what in ("grads", "weights"):
                for key, value in first[name][what].items():
                    assert torch.equal(value, second[name][what][key]), f"{what} of {key}"
            for key, grad in first[name]["grads"].items():
                assert key.endswith("selector.conv2.bias") or grad.abs().max() > 0, key

        torch.manual_seed(0)
        network = smooth_network().train()
        batches = [data_of_rank(rank) for rank in range(2)]
        x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        nn.functional.cross_entropy(network(x), labels).backward()
        for key, parameter in network.named_parameters():
            grad = first["smooth"]["grads"][key]
            torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-7)
