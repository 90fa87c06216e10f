"""Of what kind an object of the program is, without a word from the object: `isinstance` asks those of other kinds for
their `__class__`, and a proxy then makes what it is to be, or raises where that is gone (weakref.proxy)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from builtins import isinstance as is_a
else:

    def is_a(it, kinds):
        return issubclass(type(it), kinds)


__all__ = ["is_a"]
