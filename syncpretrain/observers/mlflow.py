"""MLflow: the settings and figures of a run, kept by its client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncpretrain.events import Event
from syncpretrain.observers.figures import check_package, figures_of, wall_time

__all__ = ["MLflowLog"]

MOST_PARAMS = 100  # in one request
MOST_LETTERS = 500  # of a value: every server takes as many


class MLflowLog:
    """Observer that records a run with MLflow while its ``with`` block lasts.

    MLflow's own variables name the server or folder, and the experiment
    (``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``). The record ends as finished, failed, or
    killed where a signal stopped the run.

    Parameters
    ----------
    name : str, optional
        Name of the record; default a name that MLflow makes up.
    settings : mapping of str to str, optional
        Parameters of the record, each cut after 500 letters.
    experiment : str, optional
        Name of the experiment, which is made if it is new.

    Raises
    ------
    SettingsError
        If mlflow is missing.
    """

    def __init__(
        self,
        name: str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        experiment: str | None = None,
    ) -> None:
        check_package("mlflow", "mlflow")
        self._name, self._settings = name, dict(settings or {})
        self._experiment = experiment

    def __enter__(self) -> MLflowLog:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        own = self._client.create_run(_experiment(self._client, self._experiment), None, None)
        self._run: str = own.info.run_id
        if self._name is not None:
            self._client.set_tag(self._run, "mlflow.runName", self._name)
        params = [Param(name, value[:MOST_LETTERS]) for name, value in self._settings.items()]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + MOST_PARAMS])
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        stopped = isinstance(error, KeyboardInterrupt)
        status = "FINISHED" if error is None else "KILLED" if stopped else "FAILED"
        self._client.set_terminated(self._run, status)

    def __call__(self, event: Event) -> None:
        """Record the figures of an event, if it has any."""
        figures = figures_of(event)
        if figures is None:
            return
        from mlflow.entities import Metric

        time = round(1000 * wall_time(event))  # milliseconds
        values = figures.values.items()
        metrics = [Metric(name, value, time, figures.step) for name, value in values]
        self._client.log_batch(self._run, metrics=metrics)


def _experiment(client: Any, name: str | None) -> str:
    """Return the number of an experiment; make one if there is none with this name."""
    from os import environ

    name = name or environ.get("MLFLOW_EXPERIMENT_NAME")
    if name is None:
        return environ.get("MLFLOW_EXPERIMENT_ID", "0")
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)
