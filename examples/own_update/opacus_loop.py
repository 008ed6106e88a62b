"""A training step with Opacus that writes down the gradients of single examples that it takes: no line of it is leakbench's.

Needs `pip install opacus`. Writes before.safetensors, example.safetensors (the first example's gradient, before it is clipped),
update.safetensors (the gradient that steps, clipped and with noise) and truth.safetensors into the folder that is given.
"""

import sys
from pathlib import Path

import torch
from network import build
from opacus import PrivacyEngine
from safetensors.torch import save_file
from sklearn.datasets import load_digits

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
digits = load_digits()
data = torch.utils.data.TensorDataset(
    torch.tensor(digits.images[:4] / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target[:4])
)
model = build()
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
private, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=torch.utils.data.DataLoader(data, batch_size=4),
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
inputs, labels = next(iter(loader))
torch.nn.functional.cross_entropy(private(inputs), labels).backward()
example = {name: p.grad_sample[0].clone() for name, p in model.named_parameters()}
optimizer.pre_step()

save_file(before, folder / "before.safetensors")
save_file(example, folder / "example.safetensors")
save_file({name: p.grad.clone() for name, p in model.named_parameters()}, folder / "update.safetensors")
save_file({"inputs": inputs[:1], "labels": labels[:1]}, folder / "truth_of_example.safetensors")
save_file({"inputs": inputs, "labels": labels}, folder / "truth.safetensors")
