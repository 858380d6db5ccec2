# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that frozen values behave like values of `dataclass(frozen=True)`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.frozen import frozen, sortable


def make(decorate):
    @decorate
    class Value:
        """A value with each kind of field."""

        kind: ClassVar[str] = "value"
        name: str
        size: int = 4
        items: tuple = ()
        notes: dict = field(default_factory=dict, hash=False)
        password: str = field(default="", repr=False)
        seen: bool = field(default=False, compare=False, metadata={"internal": True})

        @property
        def label(self):
            return "%s of %d" % (self.name, self.size)

    return Value


OURS, THEIRS = make(frozen), make(dataclass(frozen=True))
GIVEN = [
    (("a",), {}),
    (("a", 5, (1, 2)), {}),
    (("a",), {"notes": {"b": 1}, "password": "secret"}),
    ((), {"name": "a", "seen": True}),
]


@pytest.mark.parametrize(("arguments", "named"), GIVEN)
def test_values_behave_like_dataclasses(arguments, named):
    ours, theirs = OURS(*arguments, **named), THEIRS(*arguments, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs) and "secret" not in repr(ours)
    assert hash(ours) == hash(theirs)
    assert (ours.label, ours.kind) == (theirs.label, theirs.kind)
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]


def test_values_compare_like_dataclasses():
    for one in (OURS, THEIRS):
        assert one("a") == one("a", seen=True) != one("a", password="secret")
        assert one("a", notes={"b": 1}) != one("a")
        assert len({one("a"), one("a"), one("b")}) == 2
    assert OURS("a") != THEIRS("a")
    assert OURS("a") != "a"


def test_defaults_are_not_shared():
    first, second = OURS("a"), OURS("a")
    assert first.notes == {} and first.notes is not second.notes


def test_attributes_cannot_be_set_or_deleted():
    value = OURS("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        value.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del value.name
    assert value == OURS("a")


@pytest.mark.parametrize(("arguments", "named"), [((), {}), (("a",), {"name": "b"}), (("a",), {"other": 1})])
def test_wrong_arguments_are_refused(arguments, named):
    value = make(frozen)
    for _time in range(2):
        with pytest.raises(TypeError):
            value(*arguments, **named)
    assert list(inspect.signature(value).parameters) == [each.name for each in dataclasses.fields(value)]


def test_values_can_be_replaced_and_copied():
    value = OURS("a", notes={"b": 1})
    assert dataclasses.replace(value, size=7) == OURS("a", 7, notes={"b": 1})
    assert copy.deepcopy(value) == value


@frozen
class Base:
    """A base class that the next class extends."""

    name: str


@frozen
class Derived(Base):
    """Extends a frozen class, and adds fields."""

    size: int = 1

    def __str__(self):
        return "%s %d" % (self.name, self.size)


class Plain(Base):
    """Extends a frozen class, and adds no fields."""


def test_classes_can_be_derived():
    assert Derived("a") == Derived("a", 1) != Derived("a", 2)
    assert str(Derived("a", 3)) == "a 3"
    assert Plain("a") == Plain("a") != Base("a")
    assert pickle.loads(pickle.dumps(Derived("a", 3))) == Derived("a", 3)


def make_sortable(*decorators):
    class Place:
        """A value that can be sorted."""

        name: str
        start: int = 0
        seen: bool = field(default=False, compare=False)

    for decorate in decorators:
        Place = decorate(Place)
    return Place


def test_values_sort_like_dataclasses():
    given = [("b", 1), ("a", 2), ("a", 1), ("b", 1, True), ("a",)]
    orders = []
    for place in (make_sortable(frozen, sortable), make_sortable(dataclass(frozen=True, order=True))):
        values = [place(*each) for each in given]
        orders.append([(one < other, one > other) for one in values for other in values])
        assert [(each.name, each.start) for each in sorted(values)] == sorted(
            each[:2] if each[1:] else ("a", 0) for each in given
        )
        with pytest.raises(TypeError):
            _ = values[0] < ("b", 1)
    assert orders[0] == orders[1]


def test_own_methods_are_kept():
    @frozen
    class Own:
        """A value that defines its own equality and text."""

        name: str

        def __eq__(self, other):
            return True

        def __repr__(self):
            return "own"

    assert Own("a") == Own("b")
    assert repr(Own("a")) == "own"
