# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define immutable classes like `dataclass(frozen=True)`, at a tenth of its cost.

`dataclass` compiles six functions for each class, which takes about a millisecond. A module loads a hundred such
classes. Here, classes share their functions. Only `__init__` is compiled, when the first value of the class is created.
`dataclasses.fields`, `replace` and `asdict` accept these values.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from operator import attrgetter
from typing import Any, Callable, TypeVar

T = TypeVar("T")


def frozen(cls: type[T]) -> type[T]:
    """Make the values of a class immutable, comparable and hashable.

    Fields are declared as in `dataclass`.
    """
    dataclass(init=False, repr=False, eq=False)(cls)
    compared = [each.name for each in fields(cls) if each.compare]
    hashed = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    equal, hashes = _values(compared), _values(hashed)

    def __init__(self: Any, *args: Any, **values: Any) -> None:
        # The first call replaces this function with the compiled one.
        cls.__init__ = _init(cls)
        cls.__init__(self, *args, **values)

    def __eq__(self: Any, other: Any) -> bool:
        return equal(self) == equal(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(hashes(self))

    for function in (__init__, __eq__, __hash__, __repr__, __setattr__, __delattr__):
        if function.__name__ not in cls.__dict__:
            setattr(cls, function.__name__, function)
    return cls


def sortable(cls: type[T]) -> type[T]:
    """Make the values of a frozen class sortable by their fields.

    Write this decorator above `frozen`. Python applies the lower decorator first.
    """
    values = _values([each.name for each in fields(cls) if each.compare])

    def __lt__(self: Any, other: Any) -> bool:
        return values(self) < values(other) if other.__class__ is self.__class__ else NotImplemented

    cls.__lt__ = __lt__
    return cls


def _values(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda value: ()


def _init(cls: type) -> Callable[..., None]:
    """Compile the `__init__` that takes the fields in their order."""
    parameters, lines, names = ["self"], ["values = self.__dict__"], {"__builtins__": {}, "MISSING": MISSING}
    for each in fields(cls):
        name, default = each.name, "default_" + each.name
        lines.append("values['%s'] = %s" % (name, name))
        if each.default is not MISSING:
            names[default] = each.default
            parameters.append("%s=%s" % (name, default))
        elif each.default_factory is not MISSING:
            names[default] = each.default_factory
            parameters.append("%s=MISSING" % name)
            lines[-1] = "values['%s'] = %s() if %s is MISSING else %s" % (name, default, name, name)
        else:
            parameters.append(name)
    exec("def __init__(%s):\n %s" % (", ".join(parameters), "\n ".join(lines)), names)
    names["__init__"].__qualname__ = "%s.__init__" % cls.__qualname__
    return names["__init__"]


def __repr__(self: Any) -> str:
    shown = ["%s=%r" % (each.name, getattr(self, each.name)) for each in fields(self) if each.repr]
    return "%s(%s)" % (type(self).__qualname__, ", ".join(shown))


def __setattr__(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError("cannot assign to field %r" % name)


def __delattr__(self: Any, name: str) -> None:
    raise FrozenInstanceError("cannot delete field %r" % name)
