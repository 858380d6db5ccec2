# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find text that is not plain English.

Kinds of violations are word, phrase, opening, docstring, task, sentence, line and page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator

from language.texts import Text, extract

DOCSTRING_CHARACTERS = 80
SENTENCE_WORDS = 30
LINE_CHARACTERS = 300
PAGE_WORDS = 2000

#: (pattern, advice) of words that no page, plugin or role may use. A space in a pattern also matches a line break.
WORDS = (
    (r"whoever|nobody|somebody", "name the user, owner or process"),
    (r"anew", "write: again, or recreate"),
    (r"by and by", "write: gradually"),
    (r"but for", "write: except for"),
    (r"foret(?:ell|ells|elling|old)", "write: predict, or calculate"),
    (r"(?:is|are) told of", "write: receives, or is notified"),
)
#: (pattern, advice) of phrases that some files still contain. New text must not use them.
PHRASES = (
    (r"whom", "name the user, owner or process"),
    (
        r"(?:is|are|was|were|be|been|being) told(?! of)|(?:was|were|be|been|being) told of",
        "write: receives, or is notified",
    ),
    (r"(?:is|are|was|were|be|been|being) had", "write: is available"),
    (r"(?:is|are|was|were) said to", "write what the thing does"),
    (r"stands", "name the current state"),
    (r"comes back|come back|came back", "write: returns, or is available again"),
    (r"goes on|go on|gone on|going on", "write: continues"),
    (r"goes without saying", "delete it"),
    (r"cut off", "write: interrupted"),
    (r"(?:told|tells?|telling) apart", "write: distinguished"),
    (r"in the way", "write: blocking"),
    (r"what is (?:left|there)", "name the thing"),
    (r"that there (?:is|are|was|were)", "name the thing"),
    (r"no more that", "write: no longer"),
    (r"at its time|of its own", "write: its own"),
    (r"(?:a|an|the|one|another|first|last|second|further|no) looks?(?! like)", "write: check, read, or query"),
    (r"raises [a-z, ]+ if it is (?:none|one)", "name the condition of the error"),
)


def _compiled(
    kind: str, entries: tuple[tuple[str, str], ...]
) -> tuple[str, re.Pattern[str], list[tuple[re.Pattern[str], str]]]:
    """Return the kind, a pattern that matches any entry, and each pattern with advice."""
    spaced = [(text.replace(" ", r"\s+"), advice) for text, advice in entries]
    whole = r"\b(?:%s)\b" % "|".join(text for text, _advice in spaced)
    return (
        kind,
        re.compile(whole, re.IGNORECASE),
        [(re.compile(text, re.IGNORECASE), advice) for text, advice in spaced],
    )


TABLES = (_compiled("word", WORDS), _compiled("phrase", PHRASES))

#: The places where a sentence may start: at the start of the text or of a list item, or after the end of another
#: sentence.
START = r"(?:\A[\s\"'`]*(?:[-*]\s+)?|\n[ \t]*(?:[-*]|\d+\.)[ \t]+|\n[ \t]*\n[ \t]*|[.!?:][)\"'`]*\s+)"
OPENING = re.compile(
    START + r"(?P<opening>(?:Of|Whom|Whose|What|That which|Where one)(?=\s)"
    r"|(?:Stays|Stay|Comes|Come|Goes|Was|Is|Are|Were|Had|Did|Lies|Should)\s+"
    r"(?:an?|the|it|its|they|what|those|these|each|all|this|that|there|one|no)\b)"
)
#: Wrong starts of task names. A task name starts with a verb that describes the task.
TASK = re.compile(
    r"^[ \t]*(?:-[ \t]+)?name:[ \t]+[\"']?(?P<start>Say|Let|Have|Look|Know|Bring|Take|Leave|Go on|Stop where|Come|Tell|See|"
    r"What|Where|Whether|Who|How|The|An?|Of|No|None|Each|All)\b(?P<rest>[^\n]*)",
    re.MULTILINE,
)
TASK_FILES = re.compile(
    r"(?:^|/)(?:tasks|handlers|playbooks|plays)/|(?:^|/)(?:site|converge|prepare|verify|cleanup)\.yml$"
)
#: Words with which a function's docstring must not start, because the first word has to be a verb.
NO_VERB = re.compile(
    r"(?:a|all|an|and|any|as|at|both|by|each|every|for|from|how|if|in|it|its|no|none|not|of|on|one|or|that|the|their|there|these|"
    r"they|this|those|to|two|under|what|when|where|whether|which|who|whom|whose|with|within|without)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Hit:
    """A violation: its kind, line, excerpt and advice."""

    kind: str
    line: int
    excerpt: str
    advice: str


def check(name: str, source: str) -> list[Hit]:
    """Return the violations in a file, sorted by line."""
    hits = [hit for text in extract(name, source) for hit in _text_hits(name, text)]
    if name.endswith((".yml", ".yaml")) and TASK_FILES.search(name):
        hits += _tasks(source)
    if name.endswith(".md"):
        hits += _page(source)
    # In YAML files and scripts, the whole text also includes the comments, so the check may find a violation twice.
    unique = {(hit.line, hit.kind, *hit.excerpt.lower().split()[:2]): hit for hit in hits}
    return [hit for _key, hit in sorted(unique.items())]


def _text_hits(name: str, text: Text) -> Iterator[Hit]:
    for kind, any_entry, entries in TABLES:
        for match in any_entry.finditer(text.body):
            advice = next(advice for pattern, advice in entries if pattern.match(text.body, match.start()))
            yield Hit(kind, _line(text, match.start()), " ".join(match.group().split()), advice)
    # Code in scripts and templates has no sentences. So only their comments are checked for long sentences.
    code = text.kind == "string" and not name.endswith((".py", ".c", ".h", ".yml", ".yaml"))
    if not code and not name.endswith(".json"):
        yield from _openings(_without_code_blocks(text.body) if text.kind == "page" else text.body, text)
    if text.kind.endswith("docstring"):
        yield from _docstring(text)


def _openings(body: str, text: Text) -> Iterator[Hit]:
    for match in OPENING.finditer(body):
        sentence = re.split(r"[.!?](?=\s|$)", body[match.start("opening") :], maxsplit=1)
        end = match.start("opening") + len(sentence[0])
        if body[end : end + 1] != "?":
            yield Hit(
                "opening",
                _line(text, match.start("opening")),
                " ".join(sentence[0].split())[:60],
                "start with the thing, or with an imperative verb",
            )


def _docstring(text: Text) -> Iterator[Hit]:
    first = text.body.strip().partition("\n")[0]
    if len(first) > DOCSTRING_CHARACTERS:
        advice = "the first line of a docstring has at most %d characters" % DOCSTRING_CHARACTERS
        yield Hit("docstring", text.line, first[:60], advice)
    if text.kind == "function docstring" and NO_VERB.match(first):
        yield Hit("docstring", text.line, first[:60], "start the docstring of a function with a verb")


def _tasks(source: str) -> Iterator[Hit]:
    for match in TASK.finditer(source):
        line = source.count("\n", 0, match.start("start")) + 1
        yield Hit(
            "task", line, match["start"] + match["rest"][:60], "start with a verb that names the change or the check"
        )


def _page(source: str) -> Iterator[Hit]:
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > LINE_CHARACTERS and not line.lstrip().startswith("|"):
            yield Hit("line", number, line[:60], "a line has at most %d characters" % LINE_CHARACTERS)
    for number, paragraph in _paragraphs(source):
        for sentence in re.split(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z0-9`<\[(*\"'])", paragraph):
            if len(sentence.split()) > SENTENCE_WORDS:
                yield Hit("sentence", number, sentence[:60], "a sentence has at most %d words" % SENTENCE_WORDS)
    words = len(source.split())
    if words > PAGE_WORDS:
        yield Hit("page", 1, "%d words" % words, "a page has at most %d words: split it" % PAGE_WORDS)


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and list items with the number of their first line.

    Skips code, tables and headings.
    """
    start = 0
    lines: list[str] = []
    for number, line in enumerate(_without_code_blocks(source).splitlines(), 1):
        ends = not line.strip() or line.lstrip().startswith(("|", "#"))
        if lines and (ends or re.match(r"\s*(?:[-*]|\d+\.)\s", line)):
            yield start, _plain(" ".join(lines))
            lines = []
        if not ends:
            start = start if lines else number
            lines.append(line.strip())
    if lines:
        yield start, _plain(" ".join(lines))


def _without_code_blocks(source: str) -> str:
    """Replace lines in code blocks by empty lines, so that line numbers do not change."""
    blank = lambda match: "\n" * match.group().count("\n")  # noqa: E731
    source = re.sub(r"^([ \t]*)(```+|~~~+).*?^[ \t]*\2[ \t]*$", blank, source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", blank, source, flags=re.DOTALL)


def _plain(text: str) -> str:
    """Replace each code span by one word, and each link by its text."""
    text = re.sub(r"`[^`]*`", "`code`", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _line(text: Text, offset: int) -> int:
    return text.line + text.body.count("\n", 0, offset)
