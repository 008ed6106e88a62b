"""A request: everything that a user can ask of one run, each field declared once.

Options of commands, fields of grids and tables, and the arguments of `leakbench.run` follow from `Request`. This module imports no
PyTorch, so that commands refuse a wrong word at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter
from pydantic.fields import FieldInfo

from leakbench.core.errors import InputError, nearest
from leakbench.core.imported import check_importable
from leakbench.core.leakage_points import TAPS
from leakbench.core.recipe import FOLDER, catalog_folder, check_name, is_path, names, read_yaml
from leakbench.core.typed import STRICT, typed_fields, types_of
from leakbench.core.words import (
    FACTOR_RANGE,
    Threshold,
    check_availability,
    check_device,
    check_success,
    init_of,
    partition_words,
    seconds,
    success,
    trainable_of,
    words,
)

__all__ = [
    "ALGORITHMS",
    "BATCH",
    "CLASS",
    "ENGINES",
    "FIELDS",
    "KNOWS",
    "LOSSES",
    "MODEL_NAMES",
    "MODES",
    "MOST_ITERATIONS",
    "NETWORKS",
    "NEXT_TOKEN",
    "OPTIMIZER_NAMES",
    "PROTOCOLS",
    "READS",
    "RECIPE",
    "SQUARED",
    "STATISTICS",
    "TARGETS",
    "TRAINING_ONLY",
    "FederationFields",
    "Fields",
    "Request",
    "Unset",
    "at_least",
    "check_model",
    "check_request",
    "check_word",
    "fields_of",
    "leak_rounds",
    "metadata",
    "networks_of",
    "number_of",
    "options_of",
    "refuse_code",
    "request_of",
    "run_words",
]

PROTOCOLS = ("paper", "live")

KNOWS = ("oblivious", "defense")
"""What an attacker knows of the defense: nothing, or its recipe."""

CLASS, NEXT_TOKEN, SQUARED = LOSSES = ("class", "next_token", "squared")
"""Losses of networks: the cross-entropy of an example's class, the mean of that of the next tokens of a text, or the squared error
of the outputs from the targets."""

FUNCTION = "package.module:function"
"""Among the words that a field accepts: a user's own function."""

TARGETS = "targets"
"""The loss `class` of a cell with `targets`: that of each of their heads."""

ENGINES = ("fast", "reference")
"""How gradients are computed: by `leakbench.engine` where a network is a chain of layers, or by `torch.func` for all networks."""

READS = ("gradient", "weights")
"""What an update is read as: an exact gradient, or the float32 difference of the weights before and after."""

MODES = ("train", "eval")
"""Modes of the clients' batch normalisation, see `leakbench.cell.victim_mode`."""

BATCH, *_ = STATISTICS = ("batch", "running", "proxy", "given", "inferred")
"""What an attacker uses as the victims' statistics of batch normalisation, see `leakbench.experiment.statistics`."""

OPTIMIZER_NAMES = ("sgd", "adam")
"""Optimizers of the clients, see `leakbench.federated.optimizer`."""

ALGORITHMS = ("fedavg", "fedprox", "scaffold")
"""Algorithms of the clients' training, see `Federation.algorithm`."""

NETWORKS = 5
"""Number of initial weights over which the victims of the `paper` protocol are divided by default."""

MOST_ITERATIONS = 1_000_000
"""Largest number of iterations of a search, since its trajectory has a value for each iteration."""

MODEL_NAMES = (
    *("cnn", "cnn_avg_relu", "cnn_avg_gelu", "cnn_avg_relu_femnist", "cnn_avg_gelu_femnist", "cnn_avg_relu_omniglot"),
    *(
        "cnn_avg_gelu_omniglot",
        "cnn_fc_1024",
        "cnn_fc_2048",
        "cnn6",
        "mlp",
        "mlp_100",
        "mlp_256",
        "mlp_600",
        "mlp_1000",
    ),
    *("mlp_relu", "mlp_sigmoid", "lenet_dlg", "lenet_dlg_relu", "lenet_dlg_gelu", "lenet_cpl", "lenet_cpl_relu"),
    *("lenet_cpl_gelu", "lenet_dlg_relu_batch_norm", "lenet_dlg_gelu_batch_norm", "convnet", "convnet_no_norm"),
    *("resnet18_batch_norm", "resnet18_group_norm", "gpt_tiny", "gpt_wide", "bert_tiny", "unet_tiny", "vit_tiny"),
    *("vit_tiny_patch8", "vit_tiny_april"),
)
"""The names of `leakbench.models.MODELS`, which needs PyTorch."""

OTHER_MODELS = "torchvision:NAME, timm:NAME, PKG.MODULE:BUILD or hf:FOLDER"
"""Names of networks outside the catalog, for messages."""

RECIPE = "name in the catalog, or path of a .yaml recipe"
"""What an option of a recipe accepts, in help texts."""


WITHOUT_CODE = ("hf:", "torchvision:", "timm:")
"""Starts of the names of networks outside the catalog that no code of a user builds."""


@dataclass(frozen=True)
class Unset:
    """What a field that is not set means, as help texts show it.

    Args:
        shown: The default, in words.
    """

    shown: str


OF_DATASET = Unset("the dataset's")


@dataclass(frozen=True)
class Request:
    """What a user asks of a run; None where the recipes or the data set decide.

    Fields that are explained by more than their description: `evaluations` in `leakbench.attack.evaluations`, `budget` in
    `leakbench.experiment.attack_time`, `noise_factor` and `clip_factor` in `leakbench.cell.factors`, `epsilon`,
    `stop_at_epsilon` and `stop_at_delta` in `leakbench.cell.budget`.
    """

    defense: Annotated[str, Field(description=f"Defense: {RECIPE}.")] = "none"
    attack: Annotated[str, Field(description=f"Attack: {RECIPE}.")] = "autoleak"
    knows: Annotated[
        Literal["oblivious", "defense"] | None,
        Field(description="Knowledge of the attacker: oblivious, or defense (it knows the defense's recipe)."),
        KNOWS,
        Unset("the attack's"),
    ] = None
    dataset: Annotated[
        str, Field(description=f"Dataset: {RECIPE}, or folder:PATH (your own images, one folder per class).")
    ] = "faces"
    size: Annotated[
        int | None,
        Field(
            ge=8,
            le=512,
            description=(
                "Height and width of the images. Photographs of face folders are read at this size, other images are resized."
            ),
        ),
        OF_DATASET,
    ] = None
    model: Annotated[
        str | None,
        Field(
            description=(
                "Network that is trained: a name in the catalog, torchvision:NAME, timm:NAME, PKG.MODULE:BUILD (these "
                "three also with @FILE.safetensors, the weights), or hf:FOLDER."
            )
        ),
        Unset("cnn; mlp for tables and small images; gpt_tiny for texts"),
    ] = None
    leak_model: Annotated[
        str | None,
        Field(description="Network that leaks under the paper protocol: a name as for --model."),
        Unset("lenet_cpl, mlp_sigmoid, or gpt_tiny"),
    ] = None
    victim_mode: Annotated[
        str | None,
        Field(description="How clients run batch normalisation: train or eval. Required if the model has any."),
        MODES,
    ] = None
    statistics: Annotated[
        str,
        Field(
            description=(
                "Statistics of the attacker for --victim-mode train: batch (its guess's own), running (those that the server "
                "sent), proxy (those of public examples), given (the victim's), or inferred (the victim's, solved from the running "
                "statistics that the client sends). The last three take an attack with a prior of batch normalization."
            )
        ),
        STATISTICS,
    ] = BATCH
    init: Annotated[
        str,
        Field(description="Initial weights: default (each network's own), torch, kaiming, xavier or uniform:<a>."),
    ] = "default"
    targets: Annotated[
        str | None,
        Field(
            description=(
                "What networks predict instead of the class: a name among the `targets` of the dataset's recipe, such as labels, "
                "numbers or masks. Networks get outputs for these targets, and attacks reconstruct the targets too."
            )
        ),
        Unset("the class"),
    ] = None
    loss: Annotated[
        str,
        Field(
            description=(
                "Loss of an example: class (cross-entropy of its class; with --targets also of labels and masks, and the squared "
                "error of numbers), next_token (mean over its tokens, for causal networks of texts; no labels then leak), squared "
                "(squared error of the outputs from the targets), or package.module:function of your own."
            )
        ),
        (*LOSSES, FUNCTION),
    ] = "class"
    trainable: Annotated[
        str,
        Field(
            description=(
                "Parameters that are trained and leak: all, head (the last layer), blocks:N (the last N blocks and the head), "
                "no_embeddings, lora:r=N (LoRA of rank N, and the head), or adapters:r=N (adapters of width N in a transformer, "
                "and the head). The others keep their first values."
            )
        ),
    ] = "all"
    protocol: Annotated[
        str,
        Field(
            description=(
                "Network that leaks. paper: a sigmoid LeNet at random weights, L = 1. live: the model that is trained."
            )
        ),
        PROTOCOLS,
    ] = "paper"
    taps: Annotated[
        tuple[str, ...],
        Field(
            description=(
                "Leakage points, separated by commas: type-2 (example gradient), type-1 (client update), type-0 "
                "(server-side update), global (global update)."
            )
        ),
        TAPS,
    ] = ("type-2", "type-1", "type-0")
    victims: Annotated[int, Field(ge=1, description="Number of victims at each leakage point.")] = 10
    iterations: Annotated[
        int | None,
        Field(ge=1, le=MOST_ITERATIONS, description="Number of iterations of an attack that searches."),
        Unset("the recipe's"),
    ] = None
    evaluations: Annotated[
        int | None,
        Field(
            ge=1,
            description=(
                "Largest number of gradient evaluations per victim, shared by the searches of the attack. The results are the "
                "same on every machine. Closed forms, the separation of batches and rankings do not count."
            ),
        ),
        Unset("no limit"),
    ] = None
    budget: Annotated[
        float | None,
        Field(
            description=(
                "Largest wall time of all attacks of the command: 60, 60s, 2m or 1h. It is divided among leakage points and "
                "victims. A search that reaches it returns its best reconstruction so far and warns: results then depend on the "
                "machine. A search that has begun takes at least one iteration. Rankings count, but neither they nor closed "
                "forms are stopped. Preparation and scores can exceed it."
            )
        ),
        Unset("no limit"),
    ] = None
    # Above a billion rounds, an account of each round fits no memory.
    train_rounds: Annotated[
        int | None, Field(ge=0, le=10**9, description="Number of training rounds; 0 skips training."), OF_DATASET
    ] = None
    clients: Annotated[int | None, Field(ge=1, description="Number of clients, N."), OF_DATASET] = None
    clients_per_round: Annotated[
        int | None, Field(ge=1, description="Number of clients per round, K_t."), OF_DATASET
    ] = None
    local_iterations: Annotated[
        int | None, Field(ge=1, description="Local steps per client and round, L."), OF_DATASET
    ] = None
    epochs: Annotated[
        int | None,
        Field(
            ge=1,
            description=(
                "Passes of a client over its examples in a round, each in a new random order, instead of --local-iterations. The "
                "batch size must divide the number of a client's examples."
            ),
        ),
        Unset("none"),
    ] = None
    examples_per_client: Annotated[
        int | None, Field(ge=1, description="Number of training examples of a client."), OF_DATASET
    ] = None
    partition: Annotated[
        str | None,
        Field(
            description=(
                "Distribution of the training examples to the clients: iid, shards:N (N slices of the examples sorted by label), "
                "or dirichlet:A (each client's labels follow a draw from a Dirichlet distribution with concentration A)."
            )
        ),
        OF_DATASET,
    ] = None
    learning_rate: Annotated[float | None, Field(description="Learning rate of the clients."), OF_DATASET] = None
    client_optimizer: Annotated[
        Literal["sgd", "adam"] | None,
        Field(description="Optimizer of the clients: sgd, or adam with PyTorch's defaults."),
        OPTIMIZER_NAMES,
        OF_DATASET,
    ] = None
    momentum: Annotated[
        float | None, Field(description="Momentum of the clients' SGD, at least 0 and below 1."), OF_DATASET
    ] = None
    weight_decay: Annotated[
        float | None,
        Field(description="Weight decay of the clients: this number times the weights is added to each gradient."),
        OF_DATASET,
    ] = None
    algorithm: Annotated[
        Literal["fedavg", "fedprox", "scaffold"] | None,
        Field(description="Training of a client: fedavg, fedprox (needs --proximal), or scaffold."),
        ALGORITHMS,
        OF_DATASET,
    ] = None
    proximal: Annotated[
        float | None,
        Field(description="Factor mu of FedProx's term mu / 2 |w - w_t|^2 in the loss; implies --algorithm fedprox."),
        OF_DATASET,
    ] = None
    batch: Annotated[int | None, Field(ge=1, description="Batch size of a local step, B."), OF_DATASET] = None
    dropout: Annotated[float | None, Field(description="Probability that a sampled client fails."), OF_DATASET] = None
    availability: Annotated[
        str | None,
        Field(
            description=(
                "Clients that can be drawn in a round: uniform (all), beta:A,B (each client's probability is a draw from a Beta "
                "distribution), or diurnal:D (probabilities follow a sine of 24 rounds with amplitude D). No epsilon then counts "
                "the draw of clients as random."
            )
        ),
        OF_DATASET,
    ] = None
    leak_batch: Annotated[
        int | None, Field(ge=1, description="Batch size of a leaked client or server-side update."), Unset("B")
    ] = None
    leak_rounds: Annotated[
        tuple[str, ...], Field(description="Live protocol: rounds trained before the leak, such as 0,1,last.")
    ] = ("0",)
    join_rounds: Annotated[
        bool, Field(description="Live protocol: give all leak rounds of the same examples to one attack.")
    ] = False
    pictures: Annotated[
        bool, Field(description="Keep examples and reconstructions; without them, files contain scores only.")
    ] = True
    reads: Annotated[
        str,
        Field(description="Form of the update: gradient, or weights (the difference of weights in float32)."),
        READS,
    ] = "gradient"
    # No attack can hold more observations than 10,000.
    observations: Annotated[
        int, Field(ge=1, le=10_000, description="Number of observations of each gradient, each with new noise.")
    ] = 1
    networks: Annotated[
        int | None,
        Field(ge=1, description="Paper protocol: number of initial weights over which the victims are divided."),
        Unset(str(NETWORKS)),
    ] = None
    success: Annotated[
        float | None,
        Field(description="Threshold of a reconstruction, as 'rmse<=0.1'; for texts 'edit_distance<=0.1' or exact."),
        Unset("calibrated"),
    ] = None
    candidates: Annotated[
        int | None,
        Field(ge=2, description="Number of candidates k of identification."),
        Unset("the dataset's, usually 1000"),
    ] = None
    lpips_weights: Annotated[
        Path | None, Field(description="Folder with torchvision's weights of squeezenet or alexnet, for LPIPS.")
    ] = None
    noise_factor: Annotated[
        float | None,
        Field(description="Factor on all noise of the defense (standard deviation sigma C), from 1e-6 to 1e6."),
    ] = None
    clip_factor: Annotated[
        float | None,
        Field(description="Factor on the clip norms C of the defense, from 1e-6 to 1e6; noise sigma C follows."),
    ] = None
    epsilon: Annotated[
        float | None, Field(description="Choose the noise that gives this valid epsilon at delta 1e-5.")
    ] = None
    stop_at_epsilon: Annotated[
        float | None, Field(description="Stop training before the valid epsilon exceeds this value.")
    ] = None
    stop_at_delta: Annotated[float | None, Field(description="Delta of --stop-at-epsilon."), Unset("1e-5")] = None
    examples_per_person: Annotated[
        int,
        Field(
            ge=1,
            description=(
                "Largest number K of examples of one person in a client's data. An epsilon of one example becomes one of a person "
                "with at most K at each of at most M clients, where M clients hold the example with the most copies; a person at "
                "more clients is not covered. An epsilon of one client covers all its examples and does not change."
            ),
        ),
    ] = 1
    seed: Annotated[int, Field(ge=0, description="Seed of every random draw.")] = 0
    # The command line takes a GPU where there is one. Scripts take the CPU, on which published numbers were measured.
    device: Annotated[str, Field(description="Device: cpu, cuda, cuda:1, or auto (cuda if a GPU is available).")] = (
        "cpu"
    )
    canaries: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description=(
                "Number of canary clients or examples that audit the training: each is included with probability 1/2. They "
                "change the training, and need a defense with a valid epsilon."
            ),
        ),
    ] = 0
    engine: Annotated[
        str,
        Field(
            description=(
                "Gradient engine: fast (matrix products for sequential networks; draws the noise of a batch once) or reference "
                "(torch.func). The two draw different noise from the same distribution."
            )
        ),
        ENGINES,
    ] = "fast"


TRAINING_ONLY: dict[str, Any] = {
    "attack": "cpl",
    "iterations": 1,
    "victims": 1,
    "leak_batch": 1,
    "candidates": 2,
    "taps": ("type-2",),
}
"""Fields of a cell that is run only for its training: the smallest attack."""


FIELDS = tuple(field.name for field in dataclasses.fields(Request))


@cache
def metadata(name: str) -> tuple[Any, ...]:
    """Return the type of a field of `Request` and what its annotation adds to it.

    Args:
        name: A field.

    Returns:
        Its type, then a `FieldInfo` with its description and bounds, and where it has them the words that it accepts and `Unset`.
    """
    return get_args(_hints()[name])


def number_of(name: str) -> type[int] | type[float] | None:
    """Return the type of a field that is a number, int or float; None for other fields."""
    kind = metadata(name)[0]
    return next((each for each in get_args(kind) or (kind,) if each in (int, float)), None)


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Request, include_extras=True)


class FederationFields(TypedDict, total=False):
    """The fields of a `Request` that describe the federation and its training, all but `defense`, each with its type.

    `leakbench.epsilon` and `leakbench.audit` take them as keyword arguments.
    """

    dataset: str
    model: str | None
    victim_mode: str | None
    init: str
    targets: str | None
    loss: str
    trainable: str
    train_rounds: int | None
    clients: int | None
    clients_per_round: int | None
    local_iterations: int | None
    learning_rate: float | None
    epochs: int | None
    examples_per_client: int | None
    partition: str | None
    client_optimizer: Literal["sgd", "adam"] | None
    momentum: float | None
    weight_decay: float | None
    algorithm: Literal["fedavg", "fedprox", "scaffold"] | None
    proximal: float | None
    availability: str | None
    batch: int | None
    dropout: float | None
    noise_factor: float | None
    clip_factor: float | None
    epsilon: float | None
    stop_at_epsilon: float | None
    stop_at_delta: float | None
    examples_per_person: int
    seed: int


class Fields(FederationFields, total=False):
    """All fields of a `Request`, each with its type, as `leakbench.run` takes them as keyword arguments."""

    defense: str
    attack: str
    size: int | None
    statistics: str
    knows: Literal["oblivious", "defense"] | None
    leak_model: str | None
    protocol: str
    taps: tuple[str, ...]
    victims: int
    iterations: int | None
    evaluations: int | None
    budget: float | None
    leak_batch: int | None
    leak_rounds: tuple[str, ...]
    join_rounds: bool
    pictures: bool
    reads: str
    observations: int
    networks: int | None
    success: float | None
    candidates: int | None
    lpips_weights: Path | None
    device: str
    canaries: int
    engine: str


def check_request(request: Request) -> None:
    """Check the words and numbers of a request, as far as they can be judged without recipes and data.

    Args:
        request: The request.

    Raises:
        InputError: A word is not one of its field's, a number is outside its range, or two fields do not go together.
    """
    for name in FIELDS:
        check_word(name, getattr(request, name))
    _check_targets(request)
    if request.leak_model is not None and request.protocol == "live":
        raise InputError(
            f"leak-model: got {request.leak_model!r}, but the live protocol leaks from the network that is trained; give --model"
        )
    if request.join_rounds and request.protocol != "live":
        raise InputError("join-rounds: one attack on several rounds takes --protocol live")
    if not request.taps:
        raise InputError(f"taps: got none, expected some of {', '.join(TAPS)}")
    if request.reads == "weights" and set(request.taps) == {"type-2"}:
        raise InputError("reads: a type-2 leak is not an update, so weights cannot show it; add --taps type-1")
    check_success(request.success)
    for name in FIELDS:
        _check_bounds(name, getattr(request, name))
    if request.budget is not None and not 0 < request.budget < math.inf:
        raise InputError(f"budget: got {request.budget:g}, expected a number of seconds above 0, as 60, 60s, 2m or 1h")
    if request.dropout is not None and not 0 <= request.dropout <= 1:
        raise InputError(f"dropout: got {request.dropout}, expected a probability from 0 to 1")
    rate = request.learning_rate
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"learning-rate: got {rate}, expected a finite number above 0")
    if rate is not None and not 1e-30 <= rate <= 1e30:
        raise InputError(f"learning-rate: got {rate}, expected a number from 1e-30 to 1e30, as single precision holds")
    _check_client(request)
    _check_privacy(request)


OF_FEDPROX = " with --algorithm fedprox, as 0.01, and 0 with another algorithm"
"""End of the message about the accepted values of the proximal factor."""


def _check_client(request: Request) -> None:
    """Check the numbers of the clients' training."""
    if request.momentum is not None and not 0 <= request.momentum < 1:
        raise InputError(f"momentum: got {request.momentum}, expected a number at least 0 and below 1")
    for name in ("weight_decay", "proximal"):
        factor = getattr(request, name)
        if factor is not None and not (factor == 0 or 1e-30 <= factor <= 1e30):
            numbers = "a number from 1e-30 to 1e30"
            accepted = f"0, or {numbers}" if name == "weight_decay" else f"{numbers}{OF_FEDPROX}"
            raise InputError(f"{_option(name)}: got {factor:g}, expected {accepted}")
    if request.algorithm == "fedprox" and request.proximal == 0:
        raise InputError(f"proximal: got 0, expected a number from 1e-30 to 1e30{OF_FEDPROX}")
    if request.algorithm in ("fedavg", "scaffold") and request.proximal:
        raise InputError(
            f"proximal: got it with --algorithm {request.algorithm}; leave --algorithm out, or take fedprox"
        )
    if request.epochs is not None and request.local_iterations is not None:
        raise InputError(
            "epochs: got --local-iterations too, whose number follows from the epochs; expected one of them"
        )


def _check_privacy(request: Request) -> None:
    least, most = FACTOR_RANGE
    for name in ("noise_factor", "clip_factor"):
        factor = getattr(request, name)
        if factor is not None and not least <= factor <= most:
            raise InputError(f"{_option(name)}: got {factor}, expected a number from {least:g} to {most:g}")
    for name in ("epsilon", "stop_at_epsilon"):
        target = getattr(request, name)
        if target is not None and not 0 < target < math.inf:
            raise InputError(f"{_option(name)}: got {target}, expected a number > 0")
    if request.epsilon is not None and request.noise_factor is not None:
        raise InputError("noise-factor: got --epsilon too, which chooses the factor; expected one of them")
    if request.stop_at_delta is not None and request.stop_at_epsilon is None:
        raise InputError("stop-at-delta: got it without --stop-at-epsilon; expected both, as 8 and 1e-5")
    if request.stop_at_delta is not None and not 0 < request.stop_at_delta < 1:
        raise InputError(f"stop-at-delta: got {request.stop_at_delta}, expected a number in (0, 1)")


def check_model(field: str, name: str) -> None:
    """Check the name of a network, as far as PyTorch is not needed.

    Args:
        field: The option that names the network.
        name: The name.

    Raises:
        InputError: For a name that is not in the catalog and not of the form of another network, and for a function of a user
            whose package does not exist.
    """
    if ":" not in name and name not in MODEL_NAMES:
        raise InputError(f"{field}: unknown name {name!r}{nearest(name, MODEL_NAMES)} (or {OTHER_MODELS})")
    if ":" in name and not name.startswith(WITHOUT_CODE):
        check_importable(field, name.partition("@")[0], str(Path.cwd()))


def _check_leak_round(word: str) -> None:
    if word != "last" and not word.isdecimal():
        raise InputError(f"leak-rounds: got {word!r}, expected round numbers with commas between them, or last")


FORMS: Mapping[str, Callable[[str], object]] = {
    "model": partial(check_model, "model"),
    "leak_model": partial(check_model, "leak-model"),
    "init": init_of,
    "trainable": trainable_of,
    "partition": partition_words,
    "availability": check_availability,
    "leak_rounds": _check_leak_round,
    "device": check_device,
}
"""{field whose words have a form: its check}."""


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _check_targets(request: Request) -> None:
    """Raise InputError for targets that the recipe of the data set does not have."""
    asked, name = request.targets, request.dataset
    if asked is None:
        return
    mine = _targets_in(name)
    if not mine:
        having = "; ".join(f"{each} ({', '.join(some)})" for each in names("datasets") if (some := _targets_in(each)))
        raise InputError(
            f"targets: got {asked!r}, but {name!r} has no targets; leave it out, or take a --dataset with targets: {having}"
        )
    if asked not in mine:
        raise InputError(f"targets: unknown name {asked!r} for {name!r}{nearest(asked, mine)}")


def _targets_in(dataset: str) -> list[str]:
    """Return the names of the targets in a data set's recipe; [] for a folder of pictures, which has none."""
    if dataset.startswith(FOLDER):
        return []
    check_name("datasets", dataset)
    recipe = read_yaml(Path(dataset) if is_path(dataset) else catalog_folder("datasets") / f"{dataset}.yaml")
    found = recipe.get("targets") if isinstance(recipe, Mapping) else None
    return [*map(str, found)] if isinstance(found, Mapping) else []


FEW_WORDS = 2
"""Number of accepted words up to which a message lists them next to the nearest one."""


def check_word(name: str, value: Any) -> None:
    """Raise InputError for a word that a field does not accept, or that has another form; None is not checked.

    Args:
        name: A field of `Request`.
        value: Its value.
    """
    for word in _several(value) if name in FORMS else ():
        FORMS[name](word)
    accepted = next((extra for extra in metadata(name) if isinstance(extra, tuple)), ())
    if not accepted or value is None:
        return
    for word in _several(value):
        if word not in accepted and not (FUNCTION in accepted and ":" in word):
            near = nearest(word, accepted)
            if len(accepted) <= FEW_WORDS or FUNCTION in accepted:
                near = f", expected {' or '.join(accepted)}{'' if near.startswith('; known') else near}"
            raise InputError(f"{_option(name)}: got {word!r}{near}")


def _check_bounds(name: str, value: Any) -> None:
    for extra in metadata(name):
        if isinstance(extra, FieldInfo) and value is not None:
            for bound in extra.metadata:
                if (least := getattr(bound, "ge", None)) is not None:
                    at_least(_option(name), value, least)
                if (most := getattr(bound, "le", None)) is not None and value > most:
                    raise InputError(f"{_option(name)}: got {value}, expected at most {most}")


def _option(name: str) -> str:
    return name.replace("_", "-")


def at_least(name: str, value: int, least: int) -> int:
    """Check the lower bound of a number.

    Args:
        name: The option.
        value: Its number.
        least: The smallest accepted number.

    Returns:
        The number.

    Raises:
        InputError: It is smaller.
    """
    if value < least:
        raise InputError(f"{name}: got {value}, expected at least {least}")
    return value


def leak_rounds(request: Request, rounds: int) -> tuple[int, ...]:
    """Return the rounds before which a request leaks.

    Args:
        request: The request.
        rounds: Number of rounds that are trained.

    Returns:
        Sorted round numbers from 0 to `rounds`, each once.

    Raises:
        InputError: A word is not a round number or `last`, or the protocol or training does not reach the round.
    """
    for word in request.leak_rounds:
        _check_leak_round(word)
    if request.protocol == "paper" and not set(request.leak_rounds) <= {"0", "last" if not rounds else "0"}:
        raise InputError(
            f"leak-rounds: got {','.join(request.leak_rounds)!r}, but the paper protocol leaks before the first round (0); for"
            " other rounds add --protocol live"
        )
    found = set()
    for word in request.leak_rounds:
        number = rounds if word == "last" else int(word)
        if number > rounds:
            raise InputError(f"leak-rounds: got {number}, but only {rounds} rounds are trained (--train-rounds)")
        found.add(number)
    return tuple(sorted(found))


def networks_of(request: Request) -> int:
    """Return the number of draws of the first weights that the victims of a request are spread over.

    Args:
        request: The request, with `networks` None for the default: `NETWORKS`, and never more than there are victims.

    Returns:
        At least 1; 1 in the live protocol.

    Raises:
        InputError: For several networks in the live protocol, and for more networks than victims.
    """
    if request.protocol == "live":
        if request.networks not in (None, 1):
            raise InputError(
                f"networks: got {request.networks}, but the live protocol leaks from the one network that is trained; leave"
                " --networks out, and train again with another --seed for another network"
            )
        return 1
    if request.networks is None:
        return min(NETWORKS, request.victims)
    if request.networks > request.victims:
        raise InputError(
            f"networks: got {request.networks}, expected at most the number of victims ({request.victims}); raise --victims"
        )
    return request.networks


def refuse_code(given: Mapping[str, Any]) -> None:
    """Raise InputError if fields of a file name a function to import: a file is data, and may be a stranger's."""
    for field in ("model", "leak_model", "loss"):
        name = given.get(field)
        if isinstance(name, str) and ":" in name and (field == "loss" or not name.startswith(WITHOUT_CODE)):
            raise InputError(
                f"{field}: got the function {name!r}; a file imports no code, so run it by `leakbench run --{_option(field)}`"
            )


LISTS = ("taps", "leak_rounds")


def request_of(given: Mapping[str, Any]) -> Request:
    """Return the request with some fields, as a file gives them, and the defaults of the others.

    Args:
        given: {field: value}, as in `fields_of`.

    Returns:
        The request; `check_request` has not checked it yet.

    Raises:
        InputError: A field is unknown, or its value has another type.
    """
    return Request(**fields_of(given))


def fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a request, as a file gives them, with the values that a `Request` has.

    Args:
        given: {field: value}. A list is a YAML list, or words with commas between them; `success` is a number or the
            option's words; `budget` is a number of seconds, or `2m`. Nothing else is converted.

    Raises:
        InputError: A field is unknown, or its value has another type.
    """
    return typed_fields(_types(), {name: _read(name, value) for name, value in given.items()})


@cache
def _types() -> Mapping[str, TypeAdapter[Any]]:
    """Return what checks the type of each field. `check_request` checks words later and names the nearest accepted one."""
    kinds = get_type_hints(Request)
    words = [name for name, kind in kinds.items() if any(get_origin(each) is Literal for each in get_args(kind))]
    return {**types_of(Request), **dict.fromkeys(words, TypeAdapter[Any](str | None, config=STRICT))}


def _read(name: str, value: Any) -> Any:
    if name in LISTS:
        # YAML reads 0 in `leak_rounds: [0, last]` as a number.
        return words(name, value) if isinstance(value, str) else _texts(value)
    if name == "success" and isinstance(value, str):
        return success(value)
    if name == "budget" and isinstance(value, str):
        return seconds(name, value)
    return Path(value) if name == "lpips_weights" and isinstance(value, str) else value


def _texts(value: Any) -> Any:
    several = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if type(each) is int else each for each in several)


FLAGS = {"join_rounds": "--join-rounds", "pictures": "--no-pictures"}
"""{field of a request that is true or false: the option that changes it}."""


def options_of(given: Any, usual: Any, without: Collection[str] = ()) -> list[str]:
    """Return the options of the fields that differ from the usual ones.

    Args:
        given: An object of a dataclass whose fields are options.
        usual: An object of the same dataclass, with the defaults.
        without: Fields to leave out.

    Returns:
        The words of a command line, such as `["--victims", "20"]`.
    """
    found: list[str] = []
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if value == getattr(usual, field.name) or field.name in without:
            continue
        if field.name in FLAGS:
            found.append(FLAGS[field.name])
            continue
        value = Threshold(value) if field.name == "success" and not isinstance(value, Threshold) else value
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        found += [f"--{field.name.replace('_', '-')}", text]
    return found


def run_words(request: Request, without: Collection[str] = ()) -> list[str]:
    """Return the words of the command that runs a request, with the command line's own default of the device."""
    return ["leakbench", "run", *options_of(request, dataclasses.replace(Request(), device="auto"), without)]
