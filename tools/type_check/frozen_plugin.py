# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell mypy that the collection's decorator `frozen` creates dataclasses.

`typing.dataclass_transform` would do the same in the code, but Python 3.8 does not have it.
"""

from __future__ import annotations

from typing import Callable

from mypy.nodes import DataclassTransformSpec, RefExpr
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.dataclasses import DataclassTransformer, dataclass_tag_callback

MODULE = "ansible_collections.openfleet.gpu.plugins.module_utils.frozen"
DECORATOR, SORTABLE = f"{MODULE}.frozen", f"{MODULE}.sortable"


def make_class(context: ClassDefContext) -> bool:
    """Add the methods of a frozen dataclass.

    If the class is `sortable`, also add `<`.
    """
    decorators = {each.fullname for each in context.cls.decorators if isinstance(each, RefExpr)}
    spec = DataclassTransformSpec(eq_default=True, frozen_default=True, order_default=SORTABLE in decorators)
    return DataclassTransformer(context.cls, context.reason, spec, context.api).transform()


class FrozenPlugin(Plugin):
    """Hooks of mypy for classes that have the decorator."""

    def get_class_decorator_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """Return the hook that marks the class as a dataclass."""
        return dataclass_tag_callback if fullname == DECORATOR else None

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        """Return the hook that adds the methods."""
        return make_class if fullname == DECORATOR else None


def plugin(version: str) -> type[Plugin]:
    """Return the plugin. mypy calls this function."""
    return FrozenPlugin
