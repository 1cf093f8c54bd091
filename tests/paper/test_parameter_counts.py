"""Table 4: parameters of ResNet-101 with 10 classes, to the last unit."""

import pytest
import torch

import trueshift as ts

PLAIN = 42_520_650
TABLE_4 = {
    ("stride", None): PLAIN,
    ("lps", None): 42_966_730,
    ("stride", "adapt3"): 44_304_954,
    ("lps", "adapt3"): 44_751_034,
}
RELATIVE = {("lps", None): 446_080, ("stride", "adapt3"): 1_784_304, ("lps", "adapt3"): 2_230_384}


def count(spec, name="resnet101", **options):
    with torch.device("meta"):
        model = getattr(ts.models, name)(spec, **options)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("row", TABLE_4)
def test_table_4(row):
    method, antialias = row
    spec = ts.Sampling(method, antialias, hidden="eighth")
    assert count(spec, num_classes=10) == TABLE_4[row]


@pytest.mark.parametrize("row", RELATIVE)
def test_table_4_relative(row):
    assert TABLE_4[row] - PLAIN == RELATIVE[row]
    widths = (8, 8, 16, 32, 64) if row[0] == "lps" else "same"
    assert count(ts.Sampling(*row, hidden=widths), num_classes=10) - PLAIN == RELATIVE[row]


def test_filters_and_aps_add_nothing():
    assert count(ts.Sampling("aps"), num_classes=10) == PLAIN
    assert count(ts.Sampling("stride", "tri3"), num_classes=10) == PLAIN


def test_resnet_152_of_the_appendix():
    assert count(ts.Sampling("stride"), "resnet152") == 60_192_808


def test_the_code_default_adds_more_than_half_to_a_resnet18():
    plain = count(ts.Sampling("stride"), "resnet18", num_classes=10)
    same = count(ts.Sampling("lps", hidden="same"), "resnet18", num_classes=10)
    assert round(same / plain - 1, 3) == 0.567
