"""Real shifts: windows of a frame that the content chooses, for any network."""

from trueshift.anchor.module import Anchored
from trueshift.anchor.score import DifferenceOfGaussians

__all__ = ["Anchored", "DifferenceOfGaussians", "anchor"]

anchor = Anchored
