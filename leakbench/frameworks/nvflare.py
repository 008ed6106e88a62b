"""A filter of NVFlare that writes what passes it into files that `leakbench attack` reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from safetensors.numpy import save

from leakbench.core.typed import typed_arguments
from leakbench.storage.atomic import write_bytes

__all__ = ["UpdateTapFilter"]


@typed_arguments
class UpdateTapFilter(DXOFilter):
    """Write the weights that a client gets and the update that it sends, and change nothing.

    Put one at the end of the client's task result filters, and one among its task data filters. The files are

        FOLDER/roundN/before/CLIENT.safetensors    the weights that came with a task
        FOLDER/roundN/update/CLIENT.safetensors    what is sent as WEIGHT_DIFF
        FOLDER/roundN/after/CLIENT.safetensors     what is sent as WEIGHTS

    where N is NVFlare's number of the round, from 0. Each is the input of the option of `leakbench attack` with the name of its
    folder. The files contain arrays only, and are readable by their owner only.

    Args:
        folder: The folder; each process of a client writes its own files into it.
    """

    def __init__(self, folder: str) -> None:
        super().__init__([DataKind.WEIGHT_DIFF, DataKind.WEIGHTS], [DataKind.WEIGHT_DIFF, DataKind.WEIGHTS])
        self.folder = folder

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Write the arrays of a DXO."""
        received = self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN
        kind = "before" if received else "update" if dxo.data_kind == DataKind.WEIGHT_DIFF else "after"
        # A site may have any name; a file of another folder is not written.
        client = re.sub(r"[^\w-]", "_", str(fl_ctx.get_identity_name() or "client"))
        number = _round(dxo, shareable, fl_ctx)
        path = Path(self.folder) / f"round{number}" / kind / f"{client}.safetensors"
        arrays = {name: np.asarray(array) for name, array in dxo.data.items()}
        write_bytes(path, save({n: np.ascontiguousarray(a).reshape(a.shape) for n, a in arrays.items()}), private=True)


def _round(dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> int:
    """Return NVFlare's number of the round, 0 if nothing names it."""
    named: tuple[Any, ...] = (
        shareable.get_header(AppConstants.CURRENT_ROUND),
        dxo.get_meta_prop(MetaKey.CURRENT_ROUND),
        shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND),
        fl_ctx.get_prop(AppConstants.CURRENT_ROUND),
    )
    return next((int(number) for number in named if number is not None), 0)
