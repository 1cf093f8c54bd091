"""Transformers become exact inside: windows, tokens, relative and absolute positions."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformer_zoo import LIST, MAPS, OTHERS, SMALL, build, options

from trueshift.audit.margins import SelectorRecorder
from trueshift.convert import ConversionError, convert, plan
from trueshift.convert.parts.partition import CircularBias
from trueshift.convert.verify import difference
from trueshift.export import export, load
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1, 3, 16, 16, generator=GENERATOR)


def worst_shift(new, x, stride):
    """Return the largest change of outputs under shifts below ``stride`` along either axis."""
    moves = [move for n in range(stride) for move in ((n, 0), (0, n), (n, 2 * n + 1))]
    wide, worst = copy.deepcopy(new).double(), 0.0
    with torch.no_grad():
        expected, label = wide(x.double()), new(x).argmax(1)
        for start in range(0, len(moves), 8):
            batch = torch.cat([circular_shift(x, *move) for move in moves[start : start + 8]])
            errors = (wide(batch.double()) - expected).abs().max() / expected.std()
            worst = max(worst, float(errors))
            assert bool((new(batch).argmax(1) == label).all())  # in float32
    return worst


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_under_all_shifts(name):
    make, size, canonical = SMALL[name]
    model = build(make)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    new = convert(model, "aps", x, select_from="input", verify=False, **options(canonical))
    assert worst_shift(new, x, new.required_multiple) <= 1e-10
    old = model.state_dict()
    assert all(torch.equal(new.state_dict()[key], value) for key, value in old.items())
    phase_0 = convert(model, "stride", x, padding="keep", verify=False)
    assert difference(model, phase_0, {next(iter(new.plan.inputs)): x}) <= 1e-10


@pytest.mark.parametrize("select_from", ["output", "input"])
@pytest.mark.parametrize(
    "name", ["torchvision swin", "torchvision swin v2", "timm swin", "timm swin v2", "pvt"]
)
def test_choices_are_no_matter_of_rounding(name, select_from):
    # After a layer norm all positions have the same 2-norm: something else must tell them apart.
    make, size, canonical = SMALL[name]
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    new = convert(
        build(make), "aps", x, select_from=select_from, verify=False, **options(canonical)
    )
    recorder = SelectorRecorder(new)
    with recorder.recording(1), torch.no_grad():
        new(x)
    assert min(margin.relative for margin in recorder.margins()) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", LIST)
def test_the_list(name):
    make, size, canonical = LIST[name]
    model = build(make)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    new = convert(model, "aps", x, select_from="input", **options(canonical))
    assert worst_shift(new, x, new.required_multiple if size < 100 else 8) <= 1e-10
    convert(model, "stride", x, padding="keep")  # verifies


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    make, size, canonical = OTHERS[name]
    model = build(make)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    if canonical:
        with pytest.raises(ValueError, match="convert: "):
            convert(model, "aps", x)
    convert(model, "aps", x, select_from="input", **options(canonical))  # verifies


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_maps_move_with_the_picture(name):
    make, size, canonical = MAPS[name]
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    new = convert(build(make), "aps", x, select_from="input", **options(canonical))  # verifies
    for (piece,), y in zip(new.plan.outputs, new(x), strict=True):
        assert [axis.stride * y.shape[axis.dim] for axis in piece.axes] == [size, size]


@pytest.mark.parametrize("name", ["torchvision vit", "timm vit", "beit"])
def test_absolute_positions_are_refused_unless_asked_for(name):
    make, size, _ = SMALL[name]
    with pytest.raises(ConversionError, match="pass positions='canonical'"):
        convert(build(make), "aps", torch.randn(1, 3, size, size))


class Windows(nn.Module):
    """Attention in windows of 4 by 4, with a bias, then in those half a window further."""

    def __init__(self, shift=2, mask=True):
        super().__init__()
        self.embed, self.qkv = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 24)
        self.bias, self.shift, self.mask = nn.Parameter(torch.randn(16, 16)), shift, mask

    def forward(self, x):
        x = self.embed(x).permute(0, 2, 3, 1)
        x = x + self.attend(x, None)
        y = x.roll((-self.shift, -self.shift), (1, 2))
        mask = x.new_zeros(x.shape[1] * x.shape[2] // 16, 16, 16)
        if self.mask:
            mask[-1, :8, 8:] = -100.0
        y = self.attend(y, mask).roll((self.shift, self.shift), (1, 2))
        return (x + y).permute(0, 3, 1, 2)

    def attend(self, x, mask):
        b, h, w, c = x.shape
        x = x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) + self.bias
        if mask is not None:
            scores = (scores.view(b, -1, 16, 16) + mask).view(-1, 16, 16)
        x = (scores.softmax(-1) @ v).view(b, h // 4, w // 4, 4, 4, c)
        return x.transpose(2, 3).reshape(b, h, w, c)


def test_windows_of_one_grid_share_the_phase_and_lose_their_masks():
    new = convert(Windows(), "aps", X)
    roles = [(site.role, site.stride) for site in new.plan.sites if site.stride]
    assert roles == [("leads", (2, 2)), ("leads", (4, 4)), ("follows", (4, 4))]
    assert [site.role for site in new.plan.sites].count("mask") == 1
    assert new.required_multiple == 8


def test_windows_move_with_the_map():
    model = Windows().double()
    new = convert(model, "aps", X.double())
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    y = new(x)
    for shift in itertools.product(range(0, 16, 2), repeat=2):
        moved = circular_shift(y, shift[0] // 2, shift[1] // 2)
        torch.testing.assert_close(new(circular_shift(x, *shift)), moved)


def test_learned_windows_train():
    new = convert(Windows(), Sampling("lps", hidden=4), X, select_from="input").train()
    new(X).square().mean().backward()
    windows = [p for n, p in new.named_parameters() if "view" in n and n.endswith("conv1.weight")]
    assert len(windows) == 1
    assert windows[0].grad.abs().max() > 0


class Merging(nn.Module):
    """Patch merging by slices, channels last."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 5)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        parts = [x[:, i::2, j::2, :] for j in range(2) for i in range(2)]
        return self.mix(torch.cat(parts, -1)).mean((1, 2))


def test_patch_merging_shares_a_phase():
    new = convert(Merging(), "aps", X)
    assert [site.role for site in new.plan.sites if site.stride] == ["leads", *["follows"] * 3]


def test_filters_before_patch_merging_and_none_before_windows():
    new = convert(Merging(), Sampling("aps", "tri3"), X)
    assert len([part for part in new.modules() if type(part).__name__ == "Blur"]) == 4
    new = convert(Windows(), Sampling("aps", "adapt3", groups=2), X, select_from="input")
    assert len([part for part in new.modules() if type(part).__name__ == "AdaptiveBlur"]) == 1


class Global(nn.Module):
    """Attention of all positions, sampled queries, a class token if wanted, and a bias."""

    def __init__(self, stride=1, token=False, bias=True):
        super().__init__()
        self.embed, self.qkv = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24)
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1)
        queries = places[::stride, ::stride].flatten(0, 1)
        distance = (queries[:, None] - places.flatten(0, 1)).abs()
        self.register_buffer("index", distance[..., 0] * 4 + distance[..., 1])
        self.table = nn.Parameter(torch.randn(16))
        self.token = nn.Parameter(torch.randn(1, 1, 8)) if token else None
        self.stride, self.bias = stride, bias

    def forward(self, x):
        x = self.tokens(x)
        return x[:, 0] if self.token is not None else x.mean(1)

    def tokens(self, x):
        x = self.embed(x)
        sampled = x[:, :, :: self.stride, :: self.stride].flatten(2).transpose(1, 2)
        x = x.flatten(2).transpose(1, 2)
        if self.token is not None:
            x = sampled = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        q, k, v = self.qkv(sampled)[..., :8], *self.qkv(x)[..., 8:].chunk(2, -1)
        mask = self.table[self.index] if self.bias else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("stride", [1, 2])
def test_relative_positions_of_all_pairs_become_circular(stride):
    new = convert(Global(stride), "aps", X)
    bias = next(site for site in new.plan.sites if site.role == "bias")
    assert (bias.recipe is not None) == (stride == 2)  # it moves with the phase of the queries
    assert worst_shift(new.eval(), X, 8) <= 1e-10


class Local(Global):
    """Every position attends to its neighbours only."""

    def __init__(self):
        super().__init__()
        far = torch.maximum(torch.arange(16) // 4, torch.arange(16) % 4) > 1
        del self.table
        self.register_buffer("table", torch.zeros(16).masked_fill(far, -torch.inf))


def test_masks_of_neighbourhoods_become_circular():
    new = convert(Local(), "aps", X)
    assert [site.role for site in new.plan.sites if site.role in ("bias", "mask")] == ["bias"]
    bias = next(part for part in new.modules() if isinstance(part, CircularBias))
    mask = bias(new.table[new.index])
    assert (mask == 0).sum(-1).eq(9).all()


class Registers(Global):
    """A class token and others are joined one after the other; keys are cut and joined again."""

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token, torch.cat([2 * self.token, -self.token], 1), tokens], 1)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        k = torch.cat([k[:, :3], k[:, 3:] + self.place], 1)
        return F.scaled_dot_product_attention(q, k, v)[:, 0]

    def __init__(self):
        super().__init__(token=True)
        self.place = nn.Parameter(torch.randn(1, 16, 8))


def test_tokens_that_follow_each_other_are_as_good_as_one():
    new = convert(Registers(), "aps", X, positions="canonical")
    (site,) = [site for site in new.plan.sites if site.role == "counted"]
    assert site.name != "forward_x"  # the patches, not the image


class Downsampled(nn.Module):
    """A strided convolution, and attention from sampled queries, which must follow it."""

    def __init__(self):
        super().__init__()
        self.conv, self.attend = nn.Conv2d(8, 8, 2, 2), Global(2)

    def forward(self, x):
        y = self.conv(self.attend.embed(x))
        attended = self.attend.tokens(x).transpose(1, 2)
        return y + attended.reshape(y.shape)


def test_a_bias_follows_a_phase_that_is_chosen_elsewhere():
    new = convert(Downsampled(), "aps", X)
    bias = next(site for site in new.plan.sites if site.role == "bias")
    leaders = [site.number for site in new.plan.sites if site.role == "leads"]
    assert set(bias.recipe.phases) <= set(leaders)


def test_class_tokens_need_no_origin():
    new = convert(Global(token=True, bias=False), "aps", X)
    assert not [site for site in new.plan.sites if site.role == "counted"]


def test_circular_distances():
    distance = torch.arange(5)[:, None] - torch.arange(5)
    new = CircularBias((-2, -1), (5,), (5,))(distance.double())
    wrapped = (distance + 2) % 5 - 2
    assert torch.equal(new, wrapped.double())


class Embedded(nn.Module):
    """A position embedding after a convolution; the result is a map."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Conv2d(3, 4, 2, 2), nn.Parameter(torch.randn(1, 64, 4))

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2) + self.place
        x = torch.cat([torch.ones_like(x[:, :1]), x], 1)[:, 1:]
        return x.transpose(1, 2).reshape(-1, 4, 8, 8)


def test_maps_counted_from_an_origin_are_moved_back():
    new = convert(Embedded().double(), "aps", X.double(), positions="canonical")
    assert [site.role for site in new.plan.sites].count("counted") == 1
    x, shift = torch.randn(1, 3, 16, 16, dtype=torch.float64), (6, 10)
    torch.testing.assert_close(new(circular_shift(x, *shift)), circular_shift(new(x), 3, 5))
    with pytest.raises(ValueError, match="converted for inputs of size"):
        new(torch.zeros(1, 3, 32, 32))


def assert_tokens_move(new, x, size, shift, stride):
    """Check that tokens behind a class token move with the map that they are the positions of."""
    before, after = (y.split((1, size**2), 1) for y in (new(x), new(circular_shift(x, *shift))))
    torch.testing.assert_close(after[0], before[0])
    maps = (tokens.transpose(1, 2).unflatten(2, (size, size)) for tokens in (before[1], after[1]))
    moved = circular_shift(next(maps), *(n // stride for n in shift))
    torch.testing.assert_close(next(maps), moved)


class Place(nn.Module):
    """A position embedding."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, 8, 4, 4))

    def forward(self, x):
        return x + self.place


class Tokens(nn.Module):
    """Returns all tokens; a position embedding if wanted."""

    def __init__(self, embeds):
        super().__init__()
        self.attend = Global(token=True, bias=False)
        if embeds:
            self.attend.embed = nn.Sequential(self.attend.embed, Place())

    def forward(self, x):
        return self.attend.tokens(x)


@pytest.mark.parametrize("embeds", [False, True])
def test_tokens_move_with_the_map(embeds):
    net = Tokens(embeds).double()
    new = convert(net, "aps", X.double(), positions="canonical")
    assert [site.role for site in new.plan.sites].count("counted") == embeds
    assert_tokens_move(new, torch.randn(1, 3, 16, 16, dtype=torch.float64), 4, (4, 8), 4)


class Coarser(nn.Module):
    """Two coarser maps after a position embedding: by windows, and by a stride and a slice."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Conv2d(3, 4, 2, 2), nn.Parameter(torch.randn(1, 4, 8, 8))
        self.down = nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, x):
        x = self.embed(x) + self.place
        windows = x.view(-1, 4, 4, 2, 4, 2).transpose(3, 4).flatten(4)
        back = windows.softmax(-1).view(-1, 4, 4, 4, 2, 2).transpose(3, 4).reshape(x.shape)
        coarse = self.down(back)
        larger = F.interpolate(coarse, scale_factor=2) + x
        return windows.amax(-1), coarse, coarse[:, :, ::2, ::2], larger


def test_coarser_maps_counted_from_an_origin_are_moved_back():
    new = convert(Coarser().double(), "aps", X.double(), positions="canonical")
    strides = [[axis.stride for axis in piece.axes] for (piece,) in new.plan.outputs]
    assert strides == [[4, 4], [4, 4], [8, 8], [2, 2]]
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    for before, after in zip(new(x), new(circular_shift(x, 8, 0)), strict=True):
        torch.testing.assert_close(after, circular_shift(before, before.shape[-1] // 2, 0))


class Reordered(nn.Module):
    """Reorders the positions of blocks by a table, as a zigzag does, and mixes them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.randperm(16))
        self.mix = nn.Linear(16, 5)

    def forward(self, x):
        blocks = x.view(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).flatten(4)
        return self.mix(blocks[..., self.order]).mean((1, 2))


def test_operations_without_a_rule_run_as_they_are_behind_an_origin():
    assert plan(Reordered(), X).refusals
    convert(Reordered(), "aps", X, positions="canonical")  # verifies


class Hooked(nn.Module):
    """Returns what a hook kept, by device."""

    def __init__(self):
        super().__init__()
        self.body, self.kept = nn.Conv2d(3, 4, 3, 2, 1), {}
        self.body.register_forward_hook(self.keep)

    def keep(self, module, args, y):
        self.kept[y.device] = y

    def forward(self, x):
        self.body(x)
        return [self.kept.pop(x.device)] if x.device in self.kept else []


def test_results_that_hooks_keep_are_refused():
    assert len(Hooked()(X)) == 1
    with pytest.raises(ConversionError, match="nothing that the model returns"):
        convert(Hooked(), "aps", X)


class Keeps(nn.Module):
    """Keeps what it computed from a parameter, for eval mode."""

    def __init__(self):
        super().__init__()
        self.scale, self.kept = nn.Parameter(torch.ones(3)), {}

    def train(self, mode=True):
        if mode:
            self.kept = {}
        return super().train(mode)

    def forward(self, x):
        if "scale" not in self.kept:
            self.kept["scale"] = 2 * self.scale[:, None, None]
        return x * self.kept["scale"]


def test_what_a_network_keeps_for_eval_mode_stays_its_own():
    net = nn.Sequential(Keeps(), nn.Conv2d(3, 4, 2, 2)).eval()
    kept = net[0].kept
    convert(net, "aps", X)
    assert kept == {}
    with torch.no_grad():
        net(X)
    new = convert(net, "aps", X)  # computes it from the parameter, not from what is kept
    assert type(kept["scale"]) is torch.Tensor
    new(X).sum().backward()
    assert new.get_parameter("0.scale").grad.abs().max() > 0


def test_convolutions_of_single_tokens():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 2, 2), nn.Flatten(2), nn.Conv1d(4, 4, 1), nn.AdaptiveAvgPool1d(1)
    )
    assert convert(net, "aps", X)(X).shape == (1, 4, 1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoders_of_torch(batch_first):
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 4, 4)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x, mask=None):
            x = self.embed(x).flatten(2)
            x = x.transpose(1, 2) if batch_first else x.permute(2, 0, 1)
            return self.encoder(x, mask).mean(1 if batch_first else 0)

    assert convert(Encoded(), "aps", X)(X).shape == (1, 8)
    with pytest.raises(ConversionError, match="mask of positions"):
        convert(Encoded(), "aps", (X, torch.zeros(16, 16)))


class Unpadded(nn.Module):
    """Patches that overlap without padding: fewer than a circle has."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Conv2d(3, 4, 4, 2), nn.Parameter(torch.randn(4, 7, 7))

    def forward(self, x):
        return (self.embed(x) + self.place).mean((2, 3))


class Resized(nn.Module):
    """Another size, not by a whole factor."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 4, 4, 4)

    def forward(self, x):
        return self.embed(F.interpolate(x, (12, 12), mode="bilinear")).relu().mean((2, 3))


@pytest.mark.parametrize("make", [Unpadded, Resized])
def test_images_themselves_may_be_counted_from_an_origin(make):
    with pytest.raises(ConversionError, match="pass positions='canonical'"):
        convert(make(), "aps", X)
    new = convert(make(), "aps", X, positions="canonical")
    assert [(site.role, site.name) for site in new.plan.sites if site.role == "counted"] == [
        ("counted", "forward_x")
    ]


def test_embeddings_of_maps_in_phase_0():
    convert(Unpadded(), "stride", X, padding="keep")  # verifies; the dense map has other sizes


def test_sizes_that_a_stride_does_not_divide_may_be_counted_from_an_origin():
    x = X[..., :12, :12]  # 12, 6, 3, 2
    net = nn.Sequential(*[nn.Conv2d(3, 3, 3, 2, 1) for _ in range(3)], nn.AdaptiveAvgPool2d(1))
    with pytest.raises(ConversionError, match="positions='canonical'") as caught:
        convert(net, "aps", x)
    (refusal,) = caught.value.refusals
    assert refusal.place == "2"
    assert "multiples of 8, got input of shape (1, 3, 12, 12)" in refusal.reason
    assert "(16, 16)" in refusal.advice
    new = convert(net, "aps", x, positions="canonical")
    assert [site.name for site in new.plan.sites if site.role == "counted"] == ["1"]
    convert(net, "stride", x, padding="keep")  # verifies


class Padded(Windows):
    """Pads 8 positions to 10, which windows of 5 divide."""

    def forward(self, x):
        x = F.pad(self.embed(x), (0, 2, 0, 2))
        windows = x.view(-1, 8, 2, 5, 2, 5).transpose(3, 4).softmax(-1).transpose(3, 4)
        return windows.reshape(x.shape)[:, :, :8, :8].mean((2, 3))


def test_windows_that_need_padding():
    with pytest.raises(ConversionError, match=r"to which padding adds none.*positions='canonical'"):
        convert(Padded(), "aps", X)
    convert(Padded(), "aps", X, positions="canonical")
    convert(Padded(), "stride", X, padding="keep")  # verifies


class Standardised(nn.Conv2d):
    """A convolution whose code makes its weights; it says training, and means the statistics."""

    def forward(self, x):
        weight = F.batch_norm(
            self.weight.reshape(1, len(self.weight), -1), None, None, training=True
        )
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


def test_variants_of_convolutions_keep_their_own_code():
    net = nn.Sequential(Standardised(3, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1))
    new = convert(net, "aps", X)
    assert [site.stride for site in new.plan.sites if site.role == "leads"] == [(2, 2)]
    convert(net, "stride", X, padding="keep")  # verifies


class Casts(nn.Module):
    """Computes in float32 at least, as attention without softmax does."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 4, 2, 2)

    def forward(self, x):
        return (100 * self.embed(x).float()).exp().clamp_max(1e4).mean((2, 3))


def test_float64_survives_float():
    new = convert(Casts(), "aps", X)  # verifies
    assert new.double()(X.double()).dtype == torch.float64
    assert new.bfloat16()(X.bfloat16()).dtype == torch.float32


class Pixels(nn.Module):
    """Takes pixels as cameras give them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x):
        return self.conv(x.float() / 255).relu().mean((2, 3))


def test_pixels_of_8_bits():
    x = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    new = convert(Pixels().eval(), "aps", x)  # verifies in float64
    assert torch.equal(new(x), new(x.roll((3, 5), (2, 3))))
    assert new(x).dtype == torch.float32


class OnlyFloat32(nn.Module):
    """Mixes channels by numbers in float32."""

    def forward(self, x):
        return F.linear(x.mean((2, 3)), torch.ones(4, 3, dtype=torch.float32))


def test_networks_that_fail_in_float64():
    net = nn.Sequential(nn.Conv2d(3, 3, 2, 2), OnlyFloat32())
    with pytest.raises(ConversionError, match=r"it fails in float64: .*verify=False"):
        convert(net, "stride", X, padding="keep")


def test_unknown_operations_may_count_from_an_origin():
    net = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.Unfold(2, stride=2), nn.Flatten())
    assert plan(net, X).refusals
    assert convert(net, "aps", X, positions="canonical")(X).shape == (1, 256)


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_files_compute_the_same(form, tmp_path):
    make, size, _ = SMALL["torchvision vit"]
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    new = convert(build(make), "aps", x, positions="canonical", verify=False)
    other = load(export(new, x, tmp_path / f"net.{form}", form, dynamic=("batch",)).path)
    moved = torch.cat([circular_shift(x, 3, 5), x[:1]])
    torch.testing.assert_close(other(moved), new(moved), rtol=1e-4, atol=1e-5)
