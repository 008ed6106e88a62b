"""A frozen vision transformer that carries patches unchanged to its adapters, whose rows are bins of patches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import unfold

from leakbench.attack.needs import IMAGE, Needs
from leakbench.attack.servers.imprint import edges_of, known_inputs
from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.types import Network
from leakbench.core.working_copy import copied
from leakbench.federated.view import Knowledge, Public
from leakbench.models.side_modules import Adapter
from leakbench.models.vision_transformer import Block, Patches

__all__ = ["Layout", "PatchBins", "PeftLeak", "patches_of"]

TAG = 4
"""Number of values that all tokens of a picture share."""

SHARP = 1000.0
"""Factor of the queries, so that a token gives all its attention to itself."""


@dataclass(frozen=True)
class Layout:
    """The use of the coordinates of a token: content, code, tag, place, one, zero and signal, in this order.

    Args:
        content: m, the number of values of a patch that a token carries.
        positions: P, the number of patches of a picture, and the length of the code of a position.
    """

    content: int
    positions: int

    @property
    def code(self) -> slice:
        """Coordinates of the code by which a token finds itself in the attention."""
        return slice(self.content, self.content + self.positions)

    @property
    def tag(self) -> slice:
        """Coordinates of the tag of the picture."""
        return slice(self.code.stop, self.code.stop + TAG)

    @property
    def place(self) -> int:
        """Coordinate of the position, p / P for patch p = 1 .. P."""
        return self.content + self.positions + TAG

    @property
    def one(self) -> int:
        """Coordinate that is one in every token."""
        return self.place + 1

    @property
    def zero(self) -> int:
        """Coordinate that is zero in every token."""
        return self.place + 2

    @property
    def signal(self) -> int:
        """Coordinate to which adapters write, and which the last layer reads."""
        return self.place + 3


@dataclass(frozen=True)
class PatchBins:
    """The bins of a PEFTLeak model, which the server remembers. Row j of an adapter is active above its cutoff.

    Args:
        layers: Names of the first layers of the a adapters with bins.
        cutoffs: Cutoffs (a, r) of their rows, ascending.
        gap: Distance in h between a patch and the same patch at the next position; h = content_0 + gap * position.
        layout: The coordinates of a token.
        basis: Directions (m, v) of the content, orthonormal.
        middle: Mean patch (v,), which is content zero.
        patch: Height and width of a patch.
        spread: Standard deviations (TAG,) of the tags of public pictures.
    """

    layers: tuple[str, ...]
    cutoffs: Tensor
    gap: float
    layout: Layout
    basis: Tensor
    middle: Tensor
    patch: int
    spread: Tensor


@part("server.peftleak")
class PeftLeak:
    """Let a frozen ViT carry patches to its adapters, whose rows are bins of patches (Sami et al., CVPR 2025, arXiv:2506.04453).

    The server chooses all frozen weights. Every token attends to itself, the MLPs are identities, and each position has a code.
    Row j of an adapter is active for h(token) above its cutoff, where h is the leading principal direction of public patches plus
    an offset for each position. A patch that is alone between two cutoffs is read exactly (`adapter_rows`). The first attention
    gives all tokens of a picture the same tag, by which patches are grouped; the last one leads the adapters' outputs to the loss.

    With a adapters of r rows, P positions share a (r - 1) bins, so k = a (r - 1) / P for each. The expected share of the patches of
    n pictures that are alone is (1 - 1 / k)^(n - 1). A network of L blocks has a = 2 L - 3.

    The paper adds random position embeddings to the content. Here content and position have separate coordinates, so that the
    reading is exact; a patch with more values than are left keeps its leading principal components only.
    """

    gain: Annotated[
        Positive,
        Field(description="Size of the adapters' outputs; a larger one raises their share of a clipped gradient."),
    ] = 0.1
    public: Annotated[
        Count, Field(description="Largest number of public examples for the cutoffs and the principal components.")
    ] = 2000

    @property
    def needs(self) -> Needs:
        """Public pictures."""
        return Needs(public=self.public, kinds=(IMAGE,))

    @property
    def threat(self) -> str:
        """`malicious parameters`: values of frozen and trained weights are chosen, no layer is added."""
        return "malicious parameters"

    def check(self, network: Network) -> None:
        """Raise InputError for a network that is not a ViT of leakbench with trained adapters."""
        _parts(network.model, network)

    def __call__(
        self, network: Network, public: Public, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Network, PatchBins]:
        """Return the network with chosen weights, and its bins.

        Raises:
            InputError: For a network that is not a ViT of leakbench with adapters, too few rows or coordinates for its patches, or
                fewer than two public examples.
        """
        model = copied(network.model)
        model.requires_grad_(False)
        first, blocks, sides = _parts(model, network)
        patch = int(first.embed.kernel_size[0])
        known = known_inputs("peftleak", network, public, self.public).reshape(-1, *public.inputs.shape[1:])
        patches = patches_of(known, patch)
        layout = _layout(first, blocks, patches)
        middle = patches.mean((0, 1))
        apart = (patches - middle).flatten(0, 1).double()
        basis = torch.linalg.eigh(apart.mT @ apart).eigenvectors.flip(1)[:, : layout.content].mT.to(patches)
        content = (patches - middle) @ basis.mT
        mix = torch.randn(TAG, layout.content, generator=rng).to(patches)
        cutoffs, gap = _cutoffs(content[..., 0], len(sides), sides[0][1].down.out_features)
        with torch.no_grad():
            _write_tokens(first, layout, basis, middle)
            for index, block in enumerate(blocks):
                _write_block(block, layout, mix if index == 0 else None, last=index == len(blocks) - 1)
            for adapter in (module for module in model.modules() if isinstance(module, Adapter)):
                for parameter in adapter.parameters():
                    parameter.zero_()
            for (_, adapter), own in zip(sides, cutoffs, strict=True):
                _write_rows(adapter, layout, own, gap, self.gain)
            _write_end(model, layout)
        parameters = {name: model.get_parameter(name).detach().clone() for name in network.parameters}
        for name in parameters:
            model.get_parameter(name).requires_grad_()
        spread = (content.mean(1) @ mix.mT).std(0)
        names = tuple(name for name, _ in sides)
        bins = PatchBins(names, cutoffs, gap, layout, basis, middle, patch, spread)
        return dataclasses.replace(network, model=model, parameters=parameters), bins


def patches_of(pictures: Tensor, patch: int) -> Tensor:
    """Return the patches (n, P, v) of pictures (n, C, H, W), row by row, as a ViT reads them."""
    return unfold(pictures, patch, stride=patch).mT


def _parts(model: nn.Module, network: Network) -> tuple[Patches, list[Block], list[tuple[str, Adapter]]]:
    """Return the patches' layer, the blocks, and the adapters that can have bins, with the names of their first layers.

    The first attention makes the tags, and what follows the last one does not reach the loss.
    """
    first = next((module for module in model.modules() if isinstance(module, Patches)), None)
    blocks = [(name, module) for name, module in model.named_modules() if isinstance(module, Block)]
    ends = [f"{name}.{end}" for name, _ in blocks for end in ("attention.project", "mlp.2")][1:-2]
    names = [f"{end}.adapter.down" for end in ends]
    if first is None or len(blocks) < 2 or any(f"{name}.weight" not in network.parameters for name in names):
        raise InputError(
            "peftleak: it reads the adapters of a vision transformer, which this network does not have or train; choose"
            " --model vit_tiny --leak-model vit_tiny --trainable adapters:r=64"
        )
    sides: list[tuple[str, Any]] = [(name, model.get_submodule(name.removesuffix(".down"))) for name in names]
    return first, [block for _, block in blocks], sides


def _layout(first: Patches, blocks: list[Block], patches: Tensor) -> Layout:
    """Return the coordinates of the tokens; raises InputError if there are not enough."""
    width, (_, positions, values) = int(first.positions.shape[2]), patches.shape
    head = width // blocks[0].attention.heads
    free = width - positions - TAG - 4
    if positions > head or free < 1:
        raise InputError(
            f"peftleak: the network has {positions} patches, and a head of {head} numbers tells that many apart; choose"
            " larger patches (vit_tiny_patch8)"
        )
    return Layout(min(values, free), positions)


def _cutoffs(values: Tensor, adapters: int, rows: int) -> tuple[Tensor, float]:
    """Return the cutoffs (a, r), and the gap between positions, for public values (n, P).

    The bins of a position are equally likely. Neighbouring rows of one adapter bound a bin, so an adapter of r rows has r - 1.
    """
    positions, bins = values.shape[1], adapters * (rows - 1)
    if bins < positions:
        least = -(-positions // adapters) + 1
        raise InputError(
            f"peftleak: {adapters} adapters of {rows} rows have {bins} bins for {positions} patches; choose --trainable"
            f" adapters:r={least} or more, or larger patches (vit_tiny_patch8)"
        )
    reach = float(values.max() - values.min())
    gap, low, edges = 4 * reach, float(values.min()) - reach, list[Tensor]()
    for p in range(positions):
        many = bins // positions + (p < bins % positions)
        inner = edges_of(values[:, p], many)[1:-1]
        edges.append(torch.cat([inner.new_tensor([low]), inner]) + gap * (p + 1))
    edges.append(values.new_tensor([low + gap * (positions + 1)]))
    # Positions with equal patches, such as the corners of digits, would give bins of zero width.
    line = torch.cat(edges).double()
    line = line + 1e-6 * reach * torch.arange(len(line), device=line.device)
    place = torch.arange(adapters, device=line.device)[:, None] * (rows - 1) + torch.arange(rows, device=line.device)
    return line[place].to(values), gap


def _write_tokens(first: Patches, layout: Layout, basis: Tensor, middle: Tensor) -> None:
    """Write the content of patches, and the code, the place and the one of positions."""
    many = layout.positions
    first.embed.weight.zero_()
    first.embed.weight[: layout.content] = basis.reshape(layout.content, *first.embed.weight.shape[1:])
    bias: Any = first.embed.bias
    bias.zero_()
    bias[: layout.content] = -(basis @ middle)
    first.token.zero_()
    first.positions.zero_()
    first.positions[0, :, layout.code] = _codes(many).to(basis)
    first.positions[0, :, layout.place] = torch.arange(many + 1, device=basis.device).to(basis) / many
    first.positions[0, :, layout.one] = 1


def _codes(positions: int) -> Tensor:
    """Return P + 1 vectors (P + 1, P) of the same length with the same products: the corners of a simplex."""
    corners = torch.eye(positions + 1, dtype=torch.float64) - 1 / (positions + 1)
    vectors: Tensor = torch.linalg.eigh(corners).eigenvectors[:, 1:]
    return corners @ vectors


def _write_block(block: Block, layout: Layout, mix: Tensor | None, last: bool) -> None:
    """Make an attention and an MLP identities of normalised tokens.

    With `mix`, the attention writes the tag instead, a mean over the tokens of a picture; in the last block, the mean signal.
    """
    width, heads = len(block.norm1.weight), block.attention.heads
    whole = torch.eye(width).to(block.norm1.weight)
    whole[:, layout.zero] -= 1  # The zero of a normalised token is minus its mean.
    query, key, value = torch.zeros_like(whole), torch.zeros_like(whole), torch.zeros_like(whole)
    if mix is not None:
        value[layout.tag] = mix @ whole[: layout.content]
    elif last:
        value[layout.signal] = whole[layout.signal]
    else:
        value = whole
        for head in range(heads):
            own = slice(head * (width // heads), head * (width // heads) + layout.positions)
            query[own], key[own] = SHARP * whole[layout.code], whole[layout.code]
    block.attention.qkv.weight.copy_(torch.cat([query, key, value]))
    block.attention.project.weight.copy_(torch.eye(width))
    # GELU(x) - GELU(-x) = x.
    before: Any = block.mlp[0]
    after: Any = block.mlp[2]
    before.weight.zero_()
    before.weight[: 2 * width] = torch.cat([whole, -whole])
    after.weight.zero_()
    if not last:
        after.weight[:, : 2 * width] = torch.cat([torch.eye(width), -torch.eye(width)], 1)
    for layer in (block.attention.qkv, block.attention.project, before, after):
        layer.bias.zero_()
    for norm in (block.norm1, block.norm2):
        norm.weight.fill_(1)
        norm.bias.zero_()


def _write_rows(adapter: Adapter, layout: Layout, cutoffs: Tensor, gap: float, gain: float) -> None:
    """Write rows with h(token) - cutoff, divided by the length of all positions; every row adds the same to the signal."""
    length = layout.positions * gap
    adapter.down.weight[:, 0] = 1 / length
    adapter.down.weight[:, layout.place] = 1
    adapter.down.weight[:, layout.one] = -cutoffs / length
    adapter.up.weight[layout.signal] = gain / len(cutoffs)


def _write_end(model: nn.Module, layout: Layout) -> None:
    """Let the last layer read the signal of the class token, with alternating signs for the classes."""
    norm, head = (model.get_submodule(name) for name in ("norm", "head"))
    norm.weight.fill_(1)  # type: ignore[operator]
    norm.bias.zero_()  # type: ignore[operator]
    weight: Any = head.weight
    signs = torch.ones(len(weight)).to(weight)
    signs[1::2] = -1
    weight.zero_()
    weight[:, layout.signal], weight[:, layout.zero] = signs, -signs
    head.bias.zero_()  # type: ignore[operator]
