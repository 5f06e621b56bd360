"""Copies a run to MLflow: one MLflow run per run, nested under the run of its comparison.

Only the client interface with explicit run ids is used. The module-level ``mlflow.log_*`` functions keep an active run per process and
take ``MLFLOW_RUN_ID`` from the environment, by which runs end up in one another. MLflow is imported on use; that takes about two seconds.
"""

from __future__ import annotations

from threespo_plugins.mlflow_tracker.connection import tracking_uri
from threespo_plugins.mlflow_tracker.names import clean_name, shorten
from threespo_plugins.mlflow_tracker.tracker import MlflowConfig, MlflowTracker

__all__ = ["MlflowConfig", "MlflowTracker", "clean_name", "shorten", "tracking_uri"]
