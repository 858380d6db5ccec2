# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edit a node's lines in Slurm's configuration files, with pure functions.

The collection writes two files, which slurm.conf and gres.conf include. In the first one, it only changes `Gres=` of
nodes, GresTypes and AccountingStorageTRES. In the second one, it writes all lines of its nodes. It never changes
slurm.conf and gres.conf themselves. Slurm refuses two lines for one node, so the node's line must be in the first file.

Format: https://slurm.schedmd.com/slurm.conf.html and https://slurm.schedmd.com/gres.conf.html.
"""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

from ..errors import Problem
from ..frozen import frozen
from .conf import GRES_CONF, PAIR, SLURM_CONF, Line, included, lines_of, tree

NODES, GRES = "openfleet_nodes.conf", "openfleet_gres.conf"
_HEADER = {
    NODES: "# openfleet.gpu changes only Gres=, GresTypes and AccountingStorageTRES in this file.\n",
    GRES: "# openfleet.gpu writes the lines of nodes with gpu_slurm_state in this file.\n",
}
_GPU_NAMES = {"gpu", "shard", "mps"}
_DBD = "accounting_storage/slurmdbd"


@frozen
class Request:
    """The desired lines of a node.

    gres       value of Gres=, or empty for none
    types      GresTypes that the node needs
    resources  entries of AccountingStorageTRES that the node needs
    lines      lines of gres.conf, each with NodeName=, or None if they are unknown
    """

    node: str
    gres: str = ""
    types: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    lines: tuple[str, ...] | None = ()


@frozen
class Edit:
    """The result of `edit`.

    texts      new text of each of the two files
    problems   problems that the administrator has to fix first. If there is one, the files must not be written
    notes      messages
    new_types  whether GresTypes changes. Slurm then needs a restart
    """

    texts: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    new_types: bool = False


def candidate(files: Mapping[str, str], directory: str, edited: Edit) -> dict[str, str]:
    """Return all files, with the edited ones, by name for a separate directory.

    Paths in Include lines become names in this directory.
    """
    texts = {**files, **{"%s/%s" % (directory, name): text for name, text in edited.texts.items()}}
    names = {path: path.rsplit("/", 1)[-1] for path in texts}
    found = {}
    for path, text in texts.items():
        rows = text.splitlines()
        for line in lines_of(path, text):
            inner = included(directory, line)
            if inner in texts:
                rows[line.first - 1] = "Include %s" % names[inner]
        found[names[path]] = "".join(row + "\n" for row in rows)
    return found


def edit(files: Mapping[str, str], directory: str, request: Request) -> Edit:
    """Return the two files with new lines for a node.

    `files` has the text of each existing file by its path: slurm.conf, gres.conf, the included files and the
    collection's files.
    """
    nodes_file, gres_file = ("%s/%s" % (directory, name) for name in (NODES, GRES))
    slurm, gres = (tree(lambda path: files.get(path, ""), directory, name) for name in (SLURM_CONF, GRES_CONF))
    problems = [
        *_include_problems(files, directory, slurm, SLURM_CONF, NODES),
        *_node_problems(slurm, nodes_file, request.node, files),
        *_include_problems(files, directory, gres, GRES_CONF, GRES),
        *_device_problems(gres, gres_file, request.node),
    ]
    nodes_text, gres_text = files.get(nodes_file, ""), files.get(gres_file, "")
    notes: list[str] = []
    new_types = False
    own = _own(nodes_file, nodes_text, request.node)
    if own:
        nodes_text = _replace_gres(nodes_text, own, request.gres)
    nodes_text, problem, new_types = _listed(slurm, nodes_file, nodes_text, "GresTypes", request.types)
    problems += problem
    accounting = [line for line in slurm if line.key == "accountingstoragetype"]
    if accounting and accounting[-1].pairs["accountingstoragetype"] == _DBD:
        nodes_text, problem, _new = _listed(slurm, nodes_file, nodes_text, "AccountingStorageTRES", request.resources)
        notes += [str(each) for each in problem]
    if request.lines is not None:
        gres_text = _with_lines(gres_file, gres_text, request)
    detect = [line for line in gres if "autodetect" in line.pairs and "nodename" not in line.pairs]
    if detect and detect[-1].pairs["autodetect"].lower() != "off":
        notes.append(
            "%s: AutoDetect=%s is not used for node %s, because its lines have AutoDetect=off."
            % (detect[-1].place, detect[-1].pairs["autodetect"], request.node)
        )
    texts = {NODES: nodes_text, GRES: gres_text}
    return Edit(texts, tuple(problems), tuple(notes), new_types)


def former_lines(files: Mapping[str, str], directory: str, node: str) -> tuple[str, list[str]]:
    """Return the value of a node's Gres=, and its lines in gres.conf."""
    nodes_file, gres_file = ("%s/%s" % (directory, name) for name in (NODES, GRES))
    own = _own(nodes_file, files.get(nodes_file, ""), node)
    rows = [line.text for line in lines_of(gres_file, files.get(gres_file, "")) if line.nodes == [node]]
    return (own.pairs.get("gres", "") if own else ""), rows


def with_former(files: Mapping[str, str], directory: str, node: str, gres: str, rows: Sequence[str]) -> dict[str, str]:
    """Return the two files with a node's former lines. Other nodes' lines stay."""
    nodes_file, gres_file = ("%s/%s" % (directory, name) for name in (NODES, GRES))
    nodes_text, gres_text = files.get(nodes_file, ""), files.get(gres_file, "")
    own = _own(nodes_file, nodes_text, node)
    if own:
        nodes_text = _replace_gres(nodes_text, own, gres)
    return {NODES: nodes_text, GRES: _with_lines(gres_file, gres_text, Request(node, lines=tuple(rows)))}


def _include_problems(
    files: Mapping[str, str], directory: str, lines: Sequence[Line], name: str, wanted: str
) -> Iterator[Problem]:
    path, own = "%s/%s" % (directory, name), "%s/%s" % (directory, wanted)
    if any(included(directory, line) == own for line in lines):
        return
    create = "" if own in files else "Create %s (touch %s). " % (own, own)
    problem = "it does not include %s" % wanted if path in files else "the file does not exist"
    yield Problem(path, problem, "%sAdd the line `Include %s` to %s." % (create, wanted, path))


def _node_problems(slurm: Sequence[Line], nodes_file: str, node: str, files: Mapping[str, str]) -> Iterator[Problem]:
    name = nodes_file.rsplit("/", 1)[-1]
    elsewhere = [line for line in slurm if line.key == "nodename" and line.file != nodes_file]
    for line in elsewhere:
        if node in line.nodes:
            cure = "Move the line to %s, and run again. Slurm refuses a second line of the node. The line is: %s"
            yield Problem(line.place, "it has the node %s" % node, cure % (nodes_file, line.shown))
            return
    owns = [line for line in lines_of(nodes_file, files.get(nodes_file, "")) if line.key == "nodename"]
    for line in owns:
        names = line.nodes
        if node in names and len(names) > 1:
            cure = (
                "Replace it with one line for each node. scontrol show hostnames '%s' lists them."
                % line.pairs["nodename"]
            )
            yield Problem(line.place, "it has %d nodes, and their GRES may differ" % len(names), cure)
            return
    if not any(line.nodes == [node] for line in owns):
        cure = "Add the node's line to %s without Gres=, and run again. `slurmd -C` on the node prints it." % nodes_file
        yield Problem(nodes_file, "%s has no line of the node %s" % (name, node), cure)


def _device_problems(gres: Sequence[Line], gres_file: str, node: str) -> Iterator[Problem]:
    """Report lines outside the collection's file that would add devices to the node."""
    for line in gres:
        pairs = line.pairs
        if "name" not in pairs and "autodetect" not in pairs:
            continue
        nodes = line.nodes if "nodename" in pairs else None
        devices = pairs.get("name", "").lower() in _GPU_NAMES
        if nodes is None and devices:
            cure = (
                "If it is for this node, move it to %s with NodeName=%s in front. Otherwise write NodeName= with its nodes in "
                "front of it. The line is: %s" % (gres_file, node, line.shown)
            )
            yield Problem(line.place, "it adds devices to each node, also to %s" % node, cure)
        elif nodes and node in nodes and (devices or "autodetect" in pairs) and line.file != gres_file:
            cure = "Move the line to %s, where it is replaced, and run again. The line is: %s"
            yield Problem(line.place, "it adds devices to the node %s" % node, cure % (gres_file, line.shown))
        elif nodes and node in nodes and len(nodes) > 1:
            yield Problem(line.place, "it is for %d nodes" % len(nodes), "Replace it with one line for each node.")


def _listed(
    slurm: Sequence[Line], nodes_file: str, text: str, key: str, wanted: Sequence[str]
) -> tuple[str, list[Problem], bool]:
    """Return the text with all wanted entries in a list such as GresTypes.

    If slurm.conf has the list, returns a problem instead.
    """
    found = [line for line in slurm if line.key == key.lower()]
    elsewhere = [line for line in found if line.file != nodes_file]
    own = next((line for line in lines_of(nodes_file, text) if line.key == key.lower()), None)
    current = [each for each in (found[-1].pairs[key.lower()] if found else "").split(",") if each]
    missing = [each for each in wanted if each not in current]
    if not missing:
        return text, [], False
    if elsewhere:
        cure = "Change it to %s=%s." % (key, ",".join([*current, *missing]))
        return text, [Problem(elsewhere[-1].place, "%s lacks %s" % (key, ", ".join(missing)), cure)], False
    new = "%s=%s" % (key, ",".join([*current, *missing]))
    return (_replace(text, own, new) if own else _prefixed(text, new)), [], True


def _prefixed(text: str, line: str) -> str:
    """Insert a line after a text's initial comments."""
    rows = (text or _HEADER[NODES]).splitlines()
    at = next((number for number, row in enumerate(rows) if not row.startswith("#")), len(rows))
    return "".join(row + "\n" for row in [*rows[:at], line, *rows[at:]])


def _own(nodes_file: str, text: str, node: str) -> Line | None:
    for line in lines_of(nodes_file, text):
        if line.key == "nodename" and line.nodes == [node]:
            return line
    return None


def _replace_gres(text: str, own: Line, gres: str) -> str:
    if own.pairs.get("gres", "") == gres:
        return text
    _line, mark, comment = text.splitlines()[own.last - 1].partition("#")
    return _replace(text, own, _with_gres(own.text, gres) + (" " + mark + comment if mark else ""))


def _with_gres(text: str, gres: str) -> str:
    """Return a node's line with another value of Gres=."""
    new = " Gres=%s" % gres if gres else ""
    pairs = [match for match in PAIR.finditer(text) if match["key"].lower() == "gres"]
    if not pairs:
        return text.rstrip() + new
    for match in reversed(pairs):
        text = text[: match.start()] + (new if match is pairs[0] else "") + text[match.end() :]
    return text


def _with_lines(gres_file: str, text: str, request: Request) -> str:
    """Return the text of gres.conf with other lines for a node."""
    rows: list[str | None] = list((text or _HEADER[GRES]).splitlines())
    first = len(rows)
    for line in reversed(list(lines_of(gres_file, text))):
        if line.nodes == [request.node]:
            rows[line.first - 1 : line.last] = []
            first = line.first - 1
    rows[first:first] = list(request.lines or ())
    return "".join("%s\n" % row for row in rows)


def _replace(text: str, line: Line, new: str) -> str:
    rows = text.splitlines()
    rows[line.first - 1 : line.last] = [new]
    return "".join(row + "\n" for row in rows)
