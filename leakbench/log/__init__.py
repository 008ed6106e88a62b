"""Writes a finished run's figures to a tracker: TensorBoard, MLflow or Weights & Biases."""

from leakbench.log.log import TRACKERS, check_tracker, log_run

__all__ = ["TRACKERS", "check_tracker", "log_run"]
