# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the layers of the source files.

The compiler reports the includes, and the linker reports the calls.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import SOURCE, Built

#: The layers from the lowest to the highest. README.md lists the layers in this order, and the Makefile builds them in
#: this order.
LAYERS = ("base", "formats", "driver", "tables", "account", "process", "throttle", "hooks")
#: Programs that are not part of the library, with the layers that they use.
PROGRAMS = {"top": ("base", "formats", "top"), "front.c": ()}
#: A longer file usually has more than one purpose.
MOST_LINES = 300


def files(source: Path) -> list[str]:
    """Return the C files and headers, by path in the source."""
    return sorted(str(path.relative_to(source)) for kind in ("c", "h") for path in source.rglob(f"*.{kind}"))


def allowed(name: str) -> tuple[str, ...]:
    """Return the layers that a file may use."""
    layer = name.partition("/")[0]
    return LAYERS[: LAYERS.index(layer) + 1] if layer in LAYERS else PROGRAMS[layer]


def reached(source: Path, names: Iterable[str]) -> dict[str, set[str]]:
    """Return the direct and indirect includes of each file, from the preprocessor."""
    command = ["gcc", "-MM", "-x", "c", "-std=c11", "-O2", "-D_GNU_SOURCE", '-DFRONT_DRIVER=""', "-I.", *names]
    rules = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout
    found = {}
    for rule in rules.replace("\\\n", " ").splitlines():
        own, *headers = (str((source / word).resolve().relative_to(source)) for word in rule.partition(":")[2].split())
        found[own] = set(headers) - {own}
    return found


def component(name: str) -> str:
    """Return the component of a file.

    A header and its implementation are one component.
    """
    return re.sub(r"\.[cho]$", "", name)


def circles(uses: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return pairs of components that use each other directly or indirectly."""
    graph: dict[str, set[str]] = {}
    for name, used in uses.items():
        graph.setdefault(component(name), set()).update(component(other) for other in used)
    closed = {name: set(used) - {name} for name, used in graph.items()}
    while True:
        more = {name: used.union(*(closed.get(other, set()) for other in used)) for name, used in closed.items()}
        if more == closed:
            return sorted((a, b) for a, used in closed.items() for b in used if a < b and a in closed.get(b, set()))
        closed = more


def upward(uses: dict[str, set[str]]) -> list[str]:
    """Return the uses of higher layers by lower ones, as "user: used"."""
    return sorted(
        f"{name}: {other}"
        for name, used in uses.items()
        for other in used
        if other.partition("/")[0] not in allowed(name)
    )


def called(folder: Path, objects: Iterable[Path]) -> dict[str, set[str]]:
    """Return {object: objects whose symbols it uses}, from the linker."""
    command = ["nm", "--print-file-name", "--portability", "--extern-only", *map(str, objects)]
    defined, wanted = {}, []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        path, name, kind = re.match(r"(.*): (\S+) (\S)", line).groups()
        own = str(Path(path).relative_to(folder))
        if kind == "U":
            wanted.append((own, name))
        else:
            defined[name] = own
    uses: dict[str, set[str]] = {}
    for own, name in wanted:
        if name in defined:
            uses.setdefault(own, set()).add(defined[name])
    return uses


@pytest.fixture(scope="module")
def includes() -> dict[str, set[str]]:
    found = reached(SOURCE, files(SOURCE))
    assert set(found) == set(files(SOURCE))
    return found


def test_a_file_includes_its_own_layer_and_those_below(includes: dict[str, set[str]]) -> None:
    assert not upward(includes)


def test_no_file_reaches_itself(includes: dict[str, set[str]]) -> None:
    assert not circles(includes)


def test_a_file_calls_its_own_layer_and_those_below(built: Built) -> None:
    """Check calls, not only includes.

    A file can declare a function itself, and then needs no include.
    """
    folder = built.library.parent
    objects = [path for layer in LAYERS for path in sorted((folder / layer).glob("*.o"))]
    assert {str(path.relative_to(folder)) for path in objects} == {
        name[:-1] + "o" for name in files(SOURCE) if name.endswith(".c") and name.partition("/")[0] in LAYERS
    }
    uses = called(folder, objects)
    assert not upward(uses)
    assert not circles(uses)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("base/files.c", '#include "hooks/graphs.h"'),
        ("account/charge.h", "#  include  <process/state.h>"),
        ("tables/table.h", '#include "../process/target.h"'),
        ("formats/quota.c", '#define HIGHER "account/account.h"\n#include HIGHER'),
        ("base/mutex.h", '#inc\\\nlude "tables/table.h"'),
        ("top/read.c", '#include "driver/reals.h"'),
    ],
)
def test_an_include_of_a_higher_layer_is_found(tmp_path: Path, file: str, text: str) -> None:
    copy = shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("build"))
    (copy / file).write_text(f"{text}\n{(copy / file).read_text()}")
    assert upward(reached(copy, [file]))


def test_a_circle_is_found(tmp_path: Path) -> None:
    """Check that a cycle of headers is found, and a cycle through a source file."""
    texts = {
        "base/a.h": '#ifndef A\n#define A\n#include "base/b.h"\n#endif\n',
        "base/b.h": "",
        "base/b.c": '#include "base/c.h"\n',
        "base/c.h": '#ifndef C\n#define C\n#include "base/a.h"\n#endif\n',
    }
    (tmp_path / "base").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert circles(reached(tmp_path, texts)) == [("base/a", "base/b"), ("base/a", "base/c"), ("base/b", "base/c")]


def test_a_call_of_a_higher_layer_is_found(tmp_path: Path) -> None:
    texts = {"base/a.c": "void b(void); void a(void) { b(); }", "hooks/b.c": "void b(void) {}"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        object_file = (tmp_path / name).with_suffix(".o")
        subprocess.run(["gcc", "-c", "-o", str(object_file), str(tmp_path / name)], check=True)
    assert upward(called(tmp_path, sorted(tmp_path.rglob("*.o")))) == ["base/a.o: hooks/b.o"]


def test_the_readme_and_the_makefile_have_the_layers() -> None:
    table = re.findall(r"^\| `(\w+)` \|", (SOURCE / "README.md").read_text(), re.MULTILINE)
    assert tuple(table[: len(LAYERS)]) == LAYERS
    made = re.search(r"^LAYERS\s*:= (.*)", (SOURCE / "Makefile").read_text(), re.MULTILINE)
    assert tuple(made.group(1).split()) == LAYERS


def over_all(check: Callable[[str, str], Iterable[str]]) -> list[str]:
    return [f"{name}: {found}" for name in files(SOURCE) for found in check(name, (SOURCE / name).read_text())]


def test_no_macro_holds_a_statement() -> None:
    """Refuse variables in macros, which are invisible in the code that uses the macro."""

    def statements(_name: str, text: str) -> Iterable[str]:
        lines = re.findall(r"^\s*#\s*define\s+(\w+)(.*)", text.replace("\\\n", " "), re.MULTILINE)
        return (macro for macro, body in lines if ";" in re.sub(r'/\*.*?\*/|"[^"]*"', "", body))

    assert not over_all(statements)


def test_no_file_is_long() -> None:
    def long(_name: str, text: str) -> Iterable[str]:
        count = len(text.splitlines())
        return [str(count)] if count > MOST_LINES else []

    assert not over_all(long)
