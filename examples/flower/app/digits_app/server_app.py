"""The server: Flower's FedAvg, and the tap on what arrives."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import save_file

from digits_app.task import build
from leakbench.flower import TapGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for as many rounds as the config says."""
    folder = str(context.run_config["tap-dir"])
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    result = strategy.start(
        grid=TapGrid(grid, folder) if folder else grid,
        initial_arrays=ArrayRecord(build().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    if folder:
        save_file({name: array.numpy() for name, array in result.arrays.items()}, Path(folder) / "final.safetensors")
