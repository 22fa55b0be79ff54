"""The model that `mlflow models serve` serves: MLflow runs this file, and its rows are a table.

It is copied into the logged model with the modules that it imports: clozeline itself need not be
installed where it is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

FOLDER = "model"


class ServedModel(PythonModel):  # type: ignore[misc]
    """Answers each row of a table with what `stages.predictor.Predictor.predict` says of it."""

    def load_context(self, context: Any) -> None:
        """Load the folder of the logged model."""
        # Here, and not above: whoever only logs the model needs no torch.
        from stages.predictor import Predictor

        self._predictor = Predictor.load(Path(context.artifacts[FOLDER]))

    def predict(
        self, context: Any, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """One answer a row, in their order.

        Args:
            context: of MLflow.
            model_input: with the columns of the task.
            params: "do" (of `Predictor.predict`; empty: what the model is for) and "top".
        """
        rows = [plain_row(row) for row in model_input.to_dict("records")]
        return list(self._predictor.predict(rows, **chosen(params or {})))


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the columns that it leaves empty; arrays are lists."""
    values = {key: v.tolist() if hasattr(v, "tolist") else v for key, v in row.items()}
    # NaN, which pandas puts where there is nothing, is the one value that differs from itself.
    return {key: v for key, v in values.items() if v is not None and v == v}


def chosen(params: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `Predictor.predict` from those of a request; what is empty is left out."""
    return {key: params[key] for key in ("do", "top") if params.get(key)}


set_model(ServedModel())
