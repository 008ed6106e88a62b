"""Slot `denoiser`: a generative prior that is used only by the estimate of a clean input from one with Gaussian noise."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import torch
from pydantic import Field
from safetensors import safe_open
from torch import Tensor

from leakbench.attack.needs import IMAGE, PLAIN, Needs
from leakbench.attack.search.coordinates import Coordinates
from leakbench.attack.slots.space import Pixels
from leakbench.attack.slots.space_mixture import coordinates_of, prior_of
from leakbench.core.errors import InputError
from leakbench.core.imported import failing_as
from leakbench.core.part import Count, Text, part
from leakbench.core.recipe import Slot
from leakbench.federated.view import View

__all__ = ["DENOISER", "Denoiser", "Denoising", "DiffusersDenoiser", "MixtureDenoiser"]

WEIGHTS = Path("unet", "diffusion_pytorch_model.safetensors")
"""Weights of a pipeline of `diffusers` without conditions, in its folder."""


@dataclass(frozen=True)
class Denoising:
    """The denoiser of a view.

    Args:
        space: The coordinates z (V, M, d) in which the noise is white.
        estimate: z + N(0, noise^2 I) (V, M, d) and noise -> the posterior mean of z.
    """

    space: Coordinates
    estimate: Callable[[Tensor, float], Tensor]


@runtime_checkable
class Denoiser(Protocol):
    """Chooses the denoiser for the inputs of a view."""

    def __call__(self, view: View) -> Denoising:
        """Return the denoiser."""


@part("denoiser.mixture_mean")
class MixtureDenoiser:
    """Return the exact posterior mean under the mixture of the space `mixture`, in its coordinates.

    In these coordinates, public examples have the covariance I.
    """

    public: Annotated[Count, Field(description="Largest number of public examples.")] = 3000

    @property
    def needs(self) -> Needs:
        """Public examples."""
        return Needs(public=self.public, kinds=PLAIN)

    def __call__(self, view: View) -> Denoising:
        """Return the denoiser; raises InputError if the view has no public examples."""
        mixture = prior_of(view, self.public)
        return Denoising(coordinates_of(view, self.public, mixture, 1.0), mixture.denoised)


@part("denoiser.diffusers")
class DiffusersDenoiser:
    """Use a diffusion model without conditions that predicts noise, from a folder in the format of `diffusers`, in pixels.

    The folder has `unet/` and `scheduler/`. The step of the model is the one whose noise is nearest to the given one (Ho et al.,
    NeurIPS 2020, eq. 4). The attacker must have trained the model without the victims; leakbench cannot check this.
    """

    needs: ClassVar[Needs] = Needs(kinds=(IMAGE,))

    folder: Annotated[Text, Field(description="Folder of the model; only safetensors are read.")]
    sha256: Annotated[
        str,
        Field(pattern="^[0-9a-f]{64}$", description="Checksum of `unet/diffusion_pytorch_model.safetensors`."),
    ]

    def __call__(self, view: View) -> Denoising:
        """Return the denoiser.

        Raises:
            InputError: If the package or the file is missing, if the checksum or the shape of the images differs, and if the model
                does not predict noise.
        """
        model, kept = self._model(view)

        def estimate(z: Tensor, noise: float) -> Tensor:
            # The model's images are in [-1, 1], so that the noise has twice the deviation.
            images, deviation = 2 * z.reshape(-1, *view.shape) - 1, 2 * noise
            step = int((((1 - kept) / kept).sqrt() - deviation).abs().argmin())
            with torch.no_grad():
                predicted = model(kept[step].sqrt().to(images) * images, step).sample
            clean: Tensor = (images - deviation * predicted + 1) / 2
            return clean.reshape(z.shape)

        return Denoising(Pixels()(view), estimate)

    def _model(self, view: View) -> tuple[Any, Tensor]:
        """Return the network, and the share (steps,) of an image's variance that each step keeps."""
        path = Path(self.folder) / WEIGHTS
        if not path.is_file():
            raise InputError(f"denoiser: folder: {str(path)!r} not found; expected a folder in the format of diffusers")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise InputError(f"denoiser: sha256: got {self.sha256}, expected that of the file, {digest}")
        try:
            diffusers: Any = importlib.import_module("diffusers")
        except ImportError as error:
            raise InputError("denoiser: diffusers is not installed; pip install 'leakbench[diffusers]'") from error
        local = {"local_files_only": True}
        with failing_as(f"denoiser: folder: {self.folder!r} cannot be read by diffusers"):
            with safe_open(path, framework="pt") as tensors:
                names = set(tensors.keys())
            model = diffusers.UNet2DModel.from_pretrained(self.folder, subfolder="unet", use_safetensors=True, **local)
            scheduler = diffusers.DDPMScheduler.from_pretrained(self.folder, subfolder="scheduler", **local)
            # diffusers draws tensors that the file lacks at random, with a warning.
            if other := sorted(names ^ set(model.state_dict())):
                raise InputError(
                    f"denoiser: folder: {str(path)!r} and the network of config.json do not have the same tensors, for example"
                    f" {other[0]!r}; save the model again with save_pretrained"
                )
        if scheduler.config.prediction_type != "epsilon":
            raise InputError(
                f"denoiser: the model predicts {scheduler.config.prediction_type!r}, expected 'epsilon' (noise)"
            )
        side = model.config.sample_size
        if view.shape != (model.config.in_channels, side, side):
            raise InputError(
                f"denoiser: the model has images of shape {(model.config.in_channels, side, side)}, got inputs of {view.shape}"
            )
        return model.to(view.like).requires_grad_(False).eval(), scheduler.alphas_cumprod.to(view.like.device)


DENOISER = Slot("denoiser", ("leakbench.attack.slots",))
