# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the documentation site of the collection.

The site has the pages of docs/, the READMEs of the roles and of the collection, and the reference that antsibull-docs
writes from the documentation of modules and roles. `make docs` runs this program.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import external
import yaml

ROOT = Path(__file__).parents[2]
COLLECTION = "openfleet.gpu"
#: Pages beside docs/*.md: the source in the checkout, and the page of the site.
PAGES = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-vulnerability.md",
    "plugins/module_utils/models/README.md": "hardware-models.md",
}
#: A link of Markdown with its target, without the anchor.
_LINK = re.compile(r"(\]\()([^)\s#]+)")
_CONTENTS = re.compile(r"^\.\. contents::\n(?:   :.*\n)*", re.MULTILINE)
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, str]:
    """Return the page of the site for each source file.

    Source files are paths below the checkout, and pages are paths below the site.
    """
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    site = {path: path.removeprefix("docs/") for path in found}
    site["docs/README.md"] = "index.md"
    for role in sorted((ROOT / "roles").iterdir()):
        for path in sorted(role.glob("*.md")):
            name = role.name if path.name == "README.md" else f"{role.name}-{path.stem}"
            site[f"roles/{role.name}/{path.name}"] = f"roles/{name}.md"
    return {**site, **PAGES}


def converted(text: str, source: str, site: dict[str, str], address: str) -> str:
    """Return a page with links that are right on the site.

    Links to files that are not part of the site point to the repository.
    """

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        for name in (path, f"{path}/README.md"):
            if name in site:
                return match[1] + posixpath.relpath(site[name], posixpath.dirname(site[source]) or ".")
        if path.startswith("docs/images/"):
            return match[1] + posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(site[source]) or ".")
        if not (ROOT / path).exists():
            raise SystemExit(f"{source}: the link {target} leads nowhere. Correct it.")
        return f"{match[1]}{address}/{path}"

    return "".join(part if n % 2 else _LINK.sub(link, part) for n, part in enumerate(_FENCE.split(text)))


def contents(text: str, site: dict[str, str]) -> str:
    """Add tables of contents to the index page.

    A section's linked pages become the section's hidden table of contents.
    """
    sections = re.split(r"(?m)^(?=## )", text)
    listed: set[str] = set()
    result = []
    for section in sections:
        linked = [target for target in re.findall(r"\]\(([^)\s#]+)\)", section) if target in site.values()]
        linked = [target for target in dict.fromkeys(linked) if target not in listed]
        listed.update(linked)
        result.append(section + _toctree(section.partition("\n")[0].strip("# "), linked))
    others = sorted(set(site.values()) - listed - {"index.md", "start.md"})
    guides = [page for page in others if page.startswith("how-to/")]
    roles = [page for page in others if page.startswith("roles/")]
    rest = [page for page in others if page not in {*guides, *roles}]
    first = _toctree("Start", ["start.md"]) + _toctree("How-tos", guides)
    last = _toctree("Roles", roles) + _toctree("Reference", [*rest, "reference/collections/openfleet/gpu/index.rst"])
    return result[0] + first + "".join(result[1:]) + last


def _toctree(caption: str, linked: list[str]) -> str:
    if not linked:
        return ""
    names = "\n".join(re.sub(r"\.(md|rst)$", "", name) for name in linked)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n\n"


def write_pages(folder: Path, address: str) -> None:
    site = pages()
    shutil.copytree(ROOT / "docs" / "images", folder / "images")
    for source, page in site.items():
        text = converted((ROOT / source).read_text(encoding="utf-8"), source, site, address)
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(contents(text, site) if page == "index.md" else text, encoding="utf-8")
    for schema in (ROOT / "docs").glob("*.json"):
        shutil.copy(schema, folder / schema.name)


def write_reference(folder: Path) -> None:
    """Run antsibull-docs on this checkout."""
    (folder / "reference").mkdir(mode=0o700)
    with tempfile.TemporaryDirectory() as name:
        collections = Path(name)
        place = collections / "ansible_collections" / "openfleet"
        place.mkdir(parents=True)
        (place / "gpu").symlink_to(ROOT)
        command = ["antsibull-docs", "collection", "--use-current", "--fail-on-error", "--dest-dir"]
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(collections)}
        subprocess.run([*command, str(folder / "reference"), COLLECTION], env=environment, check=True)
    for page in (folder / "reference").rglob("*.rst"):
        # The theme shows each page's contents beside the page, and shows an error for a second list.
        page.write_text(_CONTENTS.sub("", page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", type=Path, help="directory for the site; it is replaced")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        write_pages(source, galaxy["repository"])
        write_reference(source)
        external.write_inventory(source / "external.inv", source / "reference")
        shutil.copy(Path(__file__).with_name("conf.py"), source / "conf.py")
        shutil.rmtree(arguments.folder, ignore_errors=True)
        sphinx = ["sphinx-build", "--fail-on-warning", "--keep-going", "--quiet", "-j", "2", "-b", "html"]
        environment = {**os.environ, "OPENFLEET_VERSION": galaxy["version"]}
        done = subprocess.run([*sphinx, str(source), str(arguments.folder)], env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    print(f"{arguments.folder / 'index.html'}")


if __name__ == "__main__":
    main()
