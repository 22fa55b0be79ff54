"""`python -m pipeline`: as `clozeline`."""

import sys
from pathlib import Path

# Python puts the current folder first on the path: a person's own `model` or `stages` there would
# be imported in place of ours.
_ROOT = str(Path(__file__).resolve().parent.parent)
if sys.path and sys.path[0] != _ROOT:
    sys.path.insert(0, _ROOT)

from pipeline.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
