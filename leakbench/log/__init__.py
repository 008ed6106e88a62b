"""A finished run's figures in the tracker that its user has: TensorBoard or MLflow."""

from leakbench.log.log import TRACKERS, check_tracker, log_run

__all__ = ["TRACKERS", "check_tracker", "log_run"]
