"""Norms over space whose rounding does not depend on the position of a value.

They are torch's own, under the same names and with the same arguments.
"""

from __future__ import annotations

from torch import Tensor, nn

from trueshift.exact import group_norm


class GroupNorm(nn.GroupNorm):
    """``torch.nn.GroupNorm`` whose statistics do not depend on the order of the pixels."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _InstanceNorm(nn.modules.instancenorm._InstanceNorm):
    def forward(self, x: Tensor) -> Tensor:
        batched = x.ndim != self._get_no_batch_dim()
        if self.training or self.track_running_stats or not batched:
            return super().forward(x)
        self._check_input_dim(x)
        return group_norm(x, x.shape[1], self.weight, self.bias, self.eps)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d`` whose statistics do not depend on the order of the values."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """``torch.nn.InstanceNorm2d`` whose statistics do not depend on the order of the pixels."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """``torch.nn.InstanceNorm3d`` whose statistics do not depend on the order of the voxels."""


NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.GroupNorm: GroupNorm,
    nn.InstanceNorm1d: InstanceNorm1d,
    nn.InstanceNorm2d: InstanceNorm2d,
    nn.InstanceNorm3d: InstanceNorm3d,
}
