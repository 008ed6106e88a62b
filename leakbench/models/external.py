"""Networks outside the catalog: of torchvision, of timm, or built by a user's function, also with weights of a file.

A user writes `torchvision:NAME`, `timm:NAME` or `PKG.MODULE:BUILD`, and `@FILE.safetensors` after it for weights. A cell has
`@SHA256` at the end, over all that decides the network: the version of the library, or the source file of the function, and the
content of the weights. The path of the weights is not part of it.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakbench.core.errors import InputError, nearest
from leakbench.core.extras import need
from leakbench.core.hashes import content_hash
from leakbench.core.imported import failing_as, import_function
from leakbench.core.types import Parameters
from leakbench.core.working_copy import protect
from leakbench.models.batch_norm import BatchNorm
from leakbench.models.conversion import (
    adapt_layers,
    convert_norms,
    convert_parts,
    order_layers,
    remove_hooks,
    unwrapped_arrays,
    unwrapped_model,
)
from leakbench.models.folder import FOLDER, TYPES, checksum_of
from leakbench.models.shapes import Shape

__all__ = ["ExternalNetwork", "first_weights"]

ENDING = ".safetensors"

WITH_RULE = (nn.Conv2d, nn.Linear, BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
"""Layers whose weights `leakbench.models.initialise.initialise` draws by any rule."""

COUNTER = "num_batches_tracked"
"""Last word of the name of a counter of PyTorch's batch normalisation, which files of weights may leave out."""


SAME = 1e-3
"""How far the outputs for one input may differ by rounding, as a share of the largest one."""


@dataclass(frozen=True)
class ExternalNetwork:
    """A network outside the catalog.

    Args:
        builder: `torchvision:NAME`, `timm:NAME` or `PKG.MODULE:BUILD`.
        weights: File of weights; None for first weights.
        sha256: Hash of the builder and the weights when the cell was planned; empty for a name that a user wrote.
    """

    builder: str
    weights: Path | None = None
    sha256: str = ""

    @classmethod
    def of(cls, name: str) -> ExternalNetwork | None:
        """Return the network of a name; None for a name of the catalog, and for `hf:FOLDER`."""
        if ":" not in name or name.startswith(FOLDER):
            return None
        rest, _, sha256 = name.rpartition("@")
        if not (rest and re.fullmatch("[0-9a-f]{64}", sha256)):
            rest, sha256 = name, ""
        builder, at, weights = rest.partition("@")
        if at and not weights:
            raise InputError(f"model: got {name!r} without a file after @; expected a file *{ENDING}, or no @")
        return cls(builder, Path(weights) if weights else None, sha256)

    def __str__(self) -> str:
        return self.builder if self.weights is None else f"{self.builder}@{self.weights}"

    @property
    def runs_code(self) -> bool:
        """Whether it is built by a user's function, which is imported."""
        return self.builder.partition(":")[0] not in LIBRARIES

    @property
    def trained(self) -> bool:
        """Whether it has weights of a file."""
        return self.weights is not None

    def pinned(self, field: str = "model") -> str:
        """Return the name with its hash.

        Args:
            field: The option that names the network, for the message.

        Raises:
            InputError: For an unknown name, a function that cannot be imported, a file of weights that cannot be read, and a hash
                that is not the one in the name.
        """
        library, _, name = self.builder.partition(":")
        origin = LIBRARIES[library].check(field, name) if library in LIBRARIES else _source(field, self.builder)
        content = content_hash({"builder": self.builder, "origin": origin, "weights": self._weights_hash(field)})
        if self.sha256 not in ("", content):
            raise InputError(
                f"{field}: {str(self)!r}: its code or its weights have changed: sha256 {content[:8]}, expected"
                f" {self.sha256[:8]}; start a new run"
            )
        return f"{self}@{content}"

    def _weights_hash(self, field: str) -> str:
        if self.weights is None:
            return ""
        if self.weights.suffix != ENDING:
            raise InputError(f"{field}: got the weights {str(self.weights)!r}, expected a file *{ENDING}; convert it")
        try:
            return checksum_of(self.weights)
        except OSError as error:
            raise InputError(f"{field}: {self.weights}: cannot be read: {error.strerror}") from None

    def made(self, shape: Shape, classes: int, field: str = "model", folder: Path | None = None) -> nn.Module:
        """Return the module as its library or function builds it, with the weights of the file.

        First weights are drawn from PyTorch's own generator, see `first_weights`. What a function prints goes to stderr.

        Args:
            shape: Shape of one input.
            classes: Number of classes.
            field: The option that names the network, for the message.
            folder: Folder from which a function can be imported; None for the working directory.

        Raises:
            InputError: For a function that fails, a result that is not a module with parameters that are trained, and weights that
                are missing, unknown, not finite, or of another shape or type.
        """
        library, _, name = self.builder.partition(":")
        with failing_as(f"{field}: {self.builder!r} failed"), redirect_stdout(sys.stderr):
            if library in LIBRARIES:
                model: Any = LIBRARIES[library].build(field, name, shape, classes)
            else:
                function = import_function(field, self.builder, str(folder or Path.cwd()))
                model = function(**_arguments(function, field, self.builder, shape, classes))
        if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
            raise InputError(
                f"{field}: {self.builder!r} returned {type(model).__name__}, expected a torch.nn.Module with parameters that are"
                " trained"
            )
        made = unwrapped_model(model)
        if self.weights is not None:
            _load(made, self.weights, field)
        return made

    def built(self, shape: Shape, classes: int, field: str = "model") -> nn.Module:
        """Return the network prepared for attacks, in eval mode in float32.

        Batch normalisation becomes leakbench's, activations do not work in place, and layers are listed in the order in which they
        run.

        Args:
            shape: Shape of one input.
            classes: Number of classes.
            field: The option that names the network, for the message.

        Raises:
            InputError: As `pinned`, `made` and `convert_parts`, and for a network that does not return logits (n, classes) for
                inputs (n, *shape), or whose gradient cannot be differentiated.
        """
        self.pinned(field)
        model = self.made(shape, classes, field).cpu().float().eval()
        remove_hooks(model)
        model = convert_norms(convert_parts(model, field))
        adapt_layers(model)
        several = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        x = several[:1]
        with failing_as(f"{field}: {self.builder!r} fails on inputs of shape {shape}"), torch.no_grad():
            answer, again, together = model(x.clone()), model(x.clone()), model(several.clone())
        if not isinstance(answer, Tensor) or answer.shape != (1, classes):
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise InputError(
                f"{field}: {self.builder!r} returns {got} for one input, expected logits of shape (1, {classes})"
            )
        if not bool(answer.isfinite().all()):
            raise InputError(
                f"{field}: {str(self)!r} returns numbers that are not finite; check its weights and statistics"
            )
        if not _equal(again, answer):
            raise InputError(
                f"{field}: {self.builder!r} returns other numbers for the same input in eval mode; expected a network without a"
                " state and without random numbers"
            )
        if not _equal(together[:1], answer):
            raise InputError(
                f"{field}: {self.builder!r} returns other numbers for an input if it is in a batch; expected a network that reads"
                " each example alone, or batch normalisation"
            )
        protect(model, x)
        with failing_as(f"{field}: the gradient of {self.builder!r} cannot be computed and differentiated"):
            _differentiate(model, x)
        order_layers(model, x)
        return model

    def check_init(self, model: nn.Module, init: str) -> None:
        """Raise InputError for an initialisation other than `default` if there are weights, or a layer has no rule.

        Args:
            model: The network as `built` returns it.
            init: Name of the initialisation.
        """
        if self.trained:
            raise InputError(f"init: got {init!r}, but {str(self)!r} has weights of a file; expected default")
        for name, module in model.named_modules():
            if not isinstance(module, WITH_RULE) and next(module.parameters(recurse=False), None) is not None:
                raise InputError(
                    f"init: got {init!r}, which has no rule for {name!r}, a {type(module).__name__} of {str(self)!r}; expected"
                    " default"
                )


def _differentiate(model: nn.Module, x: Tensor) -> None:
    """Compute the gradient of one example (1, *s) under `torch.func`, and differentiate it by the input, as a search does."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    saved = dict(model.named_buffers())

    def loss(parameters: Parameters, one: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # Fused attention cannot be differentiated twice.
            logits: Tensor = functional_call(model, {**saved, **parameters}, (one,))
        return -logits.log_softmax(1).mean()

    inputs = x[None].clone().requires_grad_()
    with warnings.catch_warnings():
        # PyTorch warns of operations that `vmap` computes slowly; they are differentiated all the same.
        warnings.simplefilter("ignore", UserWarning)
        gradients = vmap(grad(loss), in_dims=(None, 0))(trained, inputs)
        total = torch.stack([g.square().sum() for g in gradients.values()]).sum()
        if total.requires_grad:
            torch.autograd.grad(total, inputs, allow_unused=True)


def _equal(some: Tensor, others: Tensor) -> bool:
    return some.shape == others.shape and bool((some - others).abs().max() <= SAME * others.abs().max())


@contextmanager
def first_weights(rng: torch.Generator) -> Iterator[None]:
    """Let code that draws from PyTorch's own generator draw from `rng`, and restore that generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**63 - 1, (), generator=rng)))
        yield


def _arguments(function: Callable[..., Any], field: str, builder: str, shape: Shape, classes: int) -> dict[str, Any]:
    """Return the arguments of a build function: `shape` and `classes` if it has parameters of these names.

    Raises:
        InputError: For another parameter without a default.
    """
    given = {"shape": shape, "classes": classes}
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # Some builtins have no signature.
        return {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in parameters.items():
        positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if (
            parameter.default is parameter.empty
            and parameter.kind not in variable
            and (positional or name not in given)
        ):
            raise InputError(
                f"{field}: {builder!r} needs the argument {name!r}, expected a function of `shape` and `classes`, of one of"
                " them, or of none"
            )
    return {name: value for name, value in given.items() if name in parameters}


def _source(field: str, builder: str) -> str:
    """Return the sha256 of the source file of a function's module; empty for a module without a file."""
    function = import_function(field, builder, str(Path.cwd()))
    if isinstance(function, nn.Module):
        raise InputError(f"{field}: {builder!r} is a module, expected a function that returns one")
    file = getattr(sys.modules[builder.partition(":")[0]], "__file__", None)
    return checksum_of(Path(file)) if file else ""


def _load(model: nn.Module, path: Path, field: str) -> None:
    """Read the weights and buffers of a network from a file; raises InputError for a file that is not of this network."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{field}: {path}: cannot be read: {' '.join(str(error).split())}") from None
    state = model.state_dict()
    tensors = dict(unwrapped_arrays(model, tensors))
    # `save_model` of safetensors writes tied weights under one of their names.
    places = {name: id(tensor) for name, tensor in model.named_parameters(remove_duplicate=False)}
    loaded = {places.get(name) for name in tensors}
    lacking = [name for name in state if name not in tensors and places.get(name, 0) not in loaded]
    missing = [name for name in lacking if name.rpartition(".")[2] != COUNTER]
    unknown = [name for name in tensors if name not in state]
    if missing or unknown:
        what = f"no weights {missing[0]!r}" if missing else f"the unknown weights {unknown[0]!r}"
        count = len(missing) + len(unknown)
        more = "" if count == 1 else f" (and {count - 1} other names differ)"
        raise InputError(f"{field}: {path}: got {what}{more}; expected those of the network's state_dict()")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{field}: {path}: weights {name!r}: got {tuple(tensor.shape)}, expected {tuple(state[name].shape)}"
            )
        if state[name].is_floating_point() and tensor.dtype not in TYPES:
            raise InputError(
                f"{field}: {path}: weights {name!r}: got {tensor.dtype}, expected floating point; convert them"
            )
        # A number of a wider type may be beyond the range of the network's.
        if not (tensor.isfinite() & tensor.to(state[name].dtype).isfinite()).all():
            raise InputError(
                f"{field}: {path}: weights {name!r}: got NaN, infinity or a number beyond"
                f" {str(state[name].dtype).removeprefix('torch.')}, expected finite numbers"
            )
    state.update(tensors)  # With the versions that some networks read.
    model.load_state_dict(state)


@dataclass(frozen=True)
class _Library:
    """A library of networks.

    Args:
        check: (field, name) -> its name and version; raises InputError for an unknown name.
        build: (field, name, shape, classes) -> module at first weights.
    """

    check: Callable[[str, str], str]
    build: Callable[[str, str, Shape, int], nn.Module]


def _check_torchvision(field: str, name: str) -> str:
    torchvision = need("torchvision", field, "vision")
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise InputError(
            f"{field}: 'torchvision:{name}': unknown name {name!r}{nearest(name, names, 'torchvision.models.list_models()')}"
        )
    return f"torchvision {torchvision.__version__}"


def _of_torchvision(field: str, name: str, shape: Shape, classes: int) -> nn.Module:
    _check_torchvision(field, name)
    if len(shape) != 3 or shape[0] != 3:
        raise InputError(
            f"{field}: 'torchvision:{name}' takes pictures of 3 channels, got shape {shape}; use timm:NAME or a function"
        )
    more = {"image_size": shape[1]} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        more = {"aux_logits": False, "init_weights": True}
    model: nn.Module = need("torchvision", field, "vision").models.get_model(
        name, weights=None, num_classes=classes, **more
    )
    return model


def _check_timm(field: str, name: str) -> str:
    timm = need("timm", field, "vision")
    if not timm.is_model(name):  # Also refuses hf-hub:NAME, which is downloaded.
        raise InputError(
            f"{field}: 'timm:{name}': unknown name {name!r}{nearest(name, timm.list_models(), 'timm.list_models()')}"
        )
    return f"timm {timm.__version__}"


def _of_timm(field: str, name: str, shape: Shape, classes: int) -> nn.Module:
    _check_timm(field, name)
    if len(shape) != 3:
        raise InputError(f"{field}: 'timm:{name}' takes pictures (C, H, W), got shape {shape}")
    timm = need("timm", field, "vision")
    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and bool(config.fixed_input_size)
    size = {"img_size": (shape[1], shape[2])} if fixed else {}
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, in_chans=shape[0], **size)
    return model


LIBRARIES = {
    "torchvision": _Library(_check_torchvision, _of_torchvision),
    "timm": _Library(_check_timm, _of_timm),
}
