"""Reads patches from the rows of adapters that a malicious server chose, and groups them into pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import unfold

from leakbench.attack.looks import averaged
from leakbench.attack.methods.bins import DIFFERENCE, SURE
from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.one_step import answered_at_once, likeliest
from leakbench.attack.public import public_of
from leakbench.attack.servers.peftleak import PatchBins
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.part import Count, NonNegative, Positive, part
from leakbench.core.types import Generators
from leakbench.federated.view import View

__all__ = ["AdapterRows", "Patch", "read_patches", "read_pictures"]


@dataclass(frozen=True)
class Patch:
    """The contents of the a (r - 1) bins of V victims.

    Args:
        values: Patches (V, bins, v).
        place: Positions (V, bins) int64 from 0.
        tag: Tags (V, bins, TAG) in deviations of public tags.
        possible: (V, bins) bool, whether a bin can contain one patch.
        noise: Standard deviation (V, bins) of the known noise on each number of a token; zero without one.
    """

    values: Tensor
    place: Tensor
    tag: Tensor
    possible: Tensor
    noise: Tensor


@part("method.adapter_rows")
class AdapterRows:
    """Compute the patch of each bin, (dD_j - dD_{j+1}) / (db_j - db_{j+1}), and group patches by tag (Sami et al., CVPR 2025).

    The bias is not needed: a token is divided by its coordinate that is one, which also removes the layer norms. The n largest
    groups of equal tags are the n pictures. The other patches of a picture are their posterior mean given those that were read,
    under a Gaussian with the mean and the leading principal components of public pictures.

    An attacker that knows the standard deviation of the noise takes a bin's position from its cutoffs, allows five standard
    deviations in all checks, and replaces each patch that it reads by its posterior mean under the same Gaussian.
    """

    behaviour = 2

    tolerance: Annotated[
        NonNegative,
        Field(
            description="How far values may exceed [0, 1], a place its position, and h its bin (in widths of the bin)."
        ),
    ] = 0.02
    public: Annotated[Count, Field(description="Largest number of public pictures for the posterior mean.")] = 1000
    radius: Annotated[
        Positive, Field(description="Largest distance of two tags of one picture, in deviations of public tags.")
    ] = 0.02

    @property
    def needs(self) -> Needs:
        """Public pictures for the posterior mean."""
        return Needs(public=self.public, kinds=(IMAGE,))

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Reconstruction:
        """Reconstruct V victims, clamped to [0, 1].

        The certainty of a picture is the number of its patches that were read. Each release gives a reconstruction, and the most
        likely one is returned.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Returns:
            NaN for a picture without a patch.

        Raises:
            InputError: If the server is not `peftleak`.
        """
        return likeliest([self._answer(view, rngs) for view, _ in averaged(views)])

    def _answer(self, view: View, rngs: Generators) -> Reconstruction:
        bins = view.secret
        if not isinstance(bins, PatchBins):
            raise InputError(
                "adapter_rows: it reads the adapters that a malicious server chose; give the attack a server: peftleak"
            )
        inputs, read = read_pictures(view, bins, self)
        sure = (read.flatten(2).sum(2) / len(bins.middle)).to(inputs)
        return answered_at_once((view,), inputs, rngs, certainty=sure.masked_fill(sure == 0, -torch.inf))


def read_pictures(view: View, bins: PatchBins, method: AdapterRows) -> tuple[Tensor, Tensor]:
    """Group the patches that are read, and return each picture's posterior mean.

    Args:
        view: The view of V victims of B pictures.
        bins: The server's bins.
        method: The tolerance, the radius and the number of public pictures.

    Returns:
        Pictures (V, B, C, H, W) in [0, 1], NaN for one without a patch, and the pixels of patches that were read (V, B, C, H, W)
        bool.
    """
    patches = read_patches(view, bins, method.tolerance)
    prior = _Prior.of(public_of(view, "adapter_rows", method.public).inputs.to(view.like))
    inputs = view.like.new_full((view.victims, view.examples, *view.shape), torch.nan)
    known = torch.zeros_like(inputs, dtype=torch.bool)
    where = unfold(torch.arange(inputs[0, 0].numel()).reshape(1, *view.shape).double(), bins.patch, stride=bins.patch)
    pixels = where[0].mT.long().to(inputs.device)
    for v in range(view.victims):
        noisy = patches.noise[v, patches.possible[v]].sum() / patches.possible[v].sum().clamp_min(1)
        radius = method.radius + SURE * float(noisy / bins.spread.amin())
        for n, members in enumerate(_groups(patches.tag[v], patches.possible[v], radius, view.examples)):
            read = inputs.new_full((inputs[0, 0].numel(),), torch.nan)
            read[pixels[patches.place[v, members]]] = patches.values[v, members]
            noise = torch.zeros_like(read)
            noise[pixels[patches.place[v, members]]] = patches.noise[v, members, None]
            inputs[v, n] = prior(read, noise).clamp(0, 1).reshape(view.shape)
            known[v, n] = read.isfinite().reshape(view.shape)
    return inputs, known


LEADING = 200
"""Number of principal components of public pictures."""


@dataclass(frozen=True)
class _Prior:
    """A Gaussian of pictures, N(mean, A A^T + noise I).

    Args:
        mean: (d,).
        directions: A (d, q).
        noise: Variance outside the leading components, per pixel.
    """

    mean: Tensor
    directions: Tensor
    noise: Tensor

    @staticmethod
    def of(pictures: Tensor) -> _Prior:
        """Return the Gaussian of public pictures (n, C, H, W)."""
        flat = pictures.flatten(1)
        apart = (flat - flat.mean(0)) / len(flat) ** 0.5
        values, vectors = torch.linalg.eigh(apart @ apart.mT)
        # The columns of X^T u have the lengths of the singular values.
        noise = values[:-LEADING].clamp_min(0).sum() / flat.shape[1] + 1e-6
        return _Prior(flat.mean(0), apart.mT @ vectors[:, -LEADING:], noise)

    def __call__(self, read: Tensor, noise: Tensor) -> Tensor:
        """Return the posterior mean (d,) of a picture.

        Args:
            read: The pixels (d,), NaN for the missing ones.
            noise: Standard deviation (d,) of the noise on them. Pixels without noise stay as they are.
        """
        known = read.isfinite()
        rows, apart = self.directions[known], (read - self.mean)[known]
        variance = self.noise + noise[known].square()
        precision = (rows / variance[:, None]).mT @ rows + torch.eye(rows.shape[1]).to(rows)
        common = self.directions @ torch.linalg.solve(precision, rows.mT @ (apart / variance))
        # What the components leave of a pixel is its own, and is shrunk by its own noise.
        own = torch.zeros_like(read)
        own[known] = (apart - common[known]) * self.noise / variance
        answer: Tensor = self.mean + common + own
        return answer


def read_patches(view: View, bins: PatchBins, tolerance: float) -> Patch:
    """Return the contents of all bins.

    Args:
        view: The view of V victims.
        bins: The server's bins.
        tolerance: See `AdapterRows`.
    """
    weight = torch.stack([view.update[f"{name}.weight"] for name in bins.layers], 1)
    layout = bins.layout
    tokens = (weight[:, :, :-1] - weight[:, :, 1:]).flatten(1, 2)
    noise = DIFFERENCE * (view.noise or 0.0) / tokens[..., layout.one].abs()
    tokens = tokens / tokens[..., layout.one, None]
    lower, upper = bins.cutoffs[:, :-1].flatten(), bins.cutoffs[:, 1:].flatten()
    values = tokens[..., : layout.content] @ bins.basis + bins.middle
    places = tokens[..., layout.place] * layout.positions
    # The contents of position p are around p times the gap.
    place = (lower / bins.gap + 0.5).floor().clamp(1, layout.positions)
    h = tokens[..., 0] + bins.gap * place
    # Noise on the coordinate that is one scales the whole token.
    moved = SURE * noise
    slack = tolerance * (upper - lower) + moved * (1 + tokens[..., 0].abs())
    loose = tolerance + moved * (1 + (values - bins.middle).abs().amax(2))
    possible = (
        (h >= lower - slack)
        & (h <= upper + slack)
        & ((places - place).abs() < tolerance + 2 * moved * layout.positions)
        & (values.amin(2) >= -loose)
        & (values.amax(2) <= 1 + loose)
        & (tokens[..., layout.zero].abs() < tolerance + moved)
        & (moved < 1)
    )
    tag = tokens[..., layout.tag] / bins.spread
    where = (place.long() - 1).expand_as(possible)
    return Patch(values, where, tag, possible & tag.isfinite().all(2), noise)


def _groups(tag: Tensor, possible: Tensor, radius: float, many: int) -> list[Tensor]:
    """Return the bins (each int64) of up to `many` pictures, the largest groups of equal tags.

    Args:
        tag: (bins, TAG).
        possible: (bins,) bool.
        radius: Largest distance from the middle of a group.
        many: Number of pictures.
    """
    left, groups = possible.nonzero()[:, 0], list[Tensor]()
    while len(left) and len(groups) < many:
        near = torch.cdist(tag[left], tag[left]) <= radius
        members = near[near.sum(1).argmax()]
        groups.append(left[members])
        left = left[~members]
    return groups
