"""Whether ONNX files can be written here. Light: asked before anything is started."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline.stage import UserError

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_onnx_installed() -> None:
    """Raise UserError, which says what to install, unless the extra `onnx` is there."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"an ONNX file needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'}"
            " not installed: pip install 'clozeline[onnx]', or leave finetune.onnx=false"
        )
