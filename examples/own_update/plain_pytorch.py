"""A training step in plain PyTorch that writes down what its client would send: no line of it is leakbench's.

Writes before.safetensors, update.safetensors (the gradient) and truth.safetensors into the folder that is given.
"""

import sys
from pathlib import Path

import torch
from network import build
from safetensors.torch import save_file
from sklearn.datasets import load_digits

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
digits = load_digits()
inputs = torch.tensor(digits.images[:1] / 16, dtype=torch.float32)[:, None]
labels = torch.tensor(digits.target[:1])

model = build()
torch.nn.functional.cross_entropy(model(inputs), labels).backward()

save_file(dict(model.state_dict()), folder / "before.safetensors")
save_file({name: p.grad for name, p in model.named_parameters()}, folder / "update.safetensors")
save_file({"inputs": inputs, "labels": labels}, folder / "truth.safetensors")
