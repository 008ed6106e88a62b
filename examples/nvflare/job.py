"""Simulates an NVFlare job of two clients whose updates pass a filter, and records what they send: python job.py FOLDER"""

import sys
from pathlib import Path

import torch
from network import build, examples
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv
from safetensors.torch import save_file

from leakbench.frameworks import UpdateTapFilter

folder = Path(sys.argv[1]).resolve()
recipe = FedAvgRecipe(
    name="digits",
    model=build(),
    min_clients=2,
    num_rounds=1,
    train_script="client.py",
    params_transfer_type=TransferType.DIFF,
)
recipe.add_client_file("network.py")
recipe.add_client_input_filter(UpdateTapFilter(str(folder)), tasks=["train"])
recipe.add_client_output_filter(PercentilePrivacy(percentile=50, gamma=0.1), tasks=["train"])
recipe.add_client_output_filter(UpdateTapFilter(str(folder)), tasks=["train"])  # The last one sees what is sent.
run = recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder / "simulation")))
print(run.get_result())
# The clients' examples, in the order of the files, score the attack.
inputs, labels = (torch.stack(several) for several in zip(*map(examples, range(2)), strict=True))
save_file({"inputs": inputs, "labels": labels}, folder / "truth.safetensors")
