"""A hook of MkDocs that takes files outside docs/ into the site, and points the links at them.

Pages link to README.md, examples and others by their place in the repository, so that the links work there, too. The
site has these files under repository/: Markdown as it is, a folder as a list of its files, and code as a page with it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = "repository/"
"""Folder of the site for files outside docs/."""
LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
"""The path in a Markdown link or image, without the anchor."""
CODE: Final = re.compile(r"^(````?)\w*$.*?^\1$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, directly or from another added page."""
    unread = [file for file in files.documentation_pages()]
    while unread:
        file = unread.pop()
        text = CODE.sub("", file.content_string)
        for target in {_target(file.src_uri, match[0]) for match in LINK.finditer(text)}:
            uri = _site_uri(target)
            if uri.startswith(OUTSIDE) and target.exists() and files.get_file_from_path(uri) is None:
                added = _make_file(config, uri, target)
                files.append(added)
                if added.is_documentation_page():
                    unread.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace each link to a file outside docs/, and each link of an added page, by one within the site."""
    source = page.file.src_uri
    folder = posixpath.dirname(source)

    def replace(match: re.Match[str]) -> str:
        uri = _site_uri(_target(source, match[0]))
        is_outside = uri.startswith(OUTSIDE) or source.startswith(OUTSIDE)
        return posixpath.relpath(uri, folder or ".") if is_outside else match[0]

    parts, end = list[str](), 0
    for block in CODE.finditer(markdown):  # code keeps its text
        parts += [LINK.sub(replace, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(replace, markdown[end:])])


def _target(source: str, link: str) -> Path:
    """Return the file in the repository that a page of the site links to."""
    page = ROOT / source.removeprefix(OUTSIDE) if source.startswith(OUTSIDE) else ROOT / "docs" / source
    return (page.parent / link).resolve()


def _site_uri(target: Path) -> str:
    """Return a file's path among the sources of the site."""
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    path = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return f"{OUTSIDE}{path}/index.md"
    return f"{OUTSIDE}{path}" if target.suffix == ".md" else f"{OUTSIDE}{path}.md"


def _make_file(config: MkDocsConfig, uri: str, target: Path) -> File:
    title = f"# {target.relative_to(ROOT)}"
    if target.is_dir():
        names = sorted(path.name for path in target.iterdir() if path.is_file() and not path.name.startswith("."))
        return File.generated(
            config, uri, content="\n".join([title, "", *(f"- [{name}]({name})" for name in names), ""])
        )
    if target.suffix == ".md":
        return File.generated(config, uri, abs_src_path=str(target))
    language = {".py": "python", ".mjs": "javascript"}.get(target.suffix, target.suffix[1:])
    return File.generated(config, uri, content=f"{title}\n\n````{language}\n{target.read_text()}````\n")
