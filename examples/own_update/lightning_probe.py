"""A probe around Lightning's trainer: hears the first step of a training, and prints what it leaks.

Needs `pip install lightning`.
"""

import lightning
import torch
from network import build
from sklearn.datasets import load_digits

import leakbench


class Classifier(lightning.LightningModule):
    """The network of these examples, and the probe that its training step shows its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build()
        self.probe = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.network(inputs)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss; the probe is shown the batch first."""
        inputs, labels = batch
        self.probe.observe(inputs, labels, torch.nn.functional.cross_entropy)
        return torch.nn.functional.cross_entropy(self(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
digits = load_digits()
data = torch.utils.data.TensorDataset(
    torch.tensor(digits.images[:16] / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target[:16])
)
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
with leakbench.probe(model, steps=1) as probe:
    model.probe = probe
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
for point, found in probe.leak(dataset="digits").items():
    print(f"{point}: ASR {found.summary['asr']:.2f}, baseline {found.summary['null_asr']:.2f}")
