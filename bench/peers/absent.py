"""Stand-ins for modules that a peer imports and that nothing measured here uses."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Absent(types.ModuleType):
    """A module that has every name, so that imports of it pass; no name of it does anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


@contextmanager
def stand_ins(names: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Inside the block, importing one of `names` gives a stand-in with these attributes.

    Parents stand before their submodules. Afterwards all is as before: other libraries look
    whether such a module is there.
    """
    before = {name: sys.modules.get(name) for name in names}
    for name, attributes in names.items():
        module = Absent(name)
        module.__path__ = []
        for key, value in attributes.items():
            setattr(module, key, value)
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above in names:
            setattr(sys.modules[above], last, module)
    try:
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before
