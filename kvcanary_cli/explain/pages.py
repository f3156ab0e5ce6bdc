"""One page: a Markdown file with the same headings in the same order, so that readers find their way by habit.

Markdown and not YAML, because a page is read as it stands on any code host, and takes no parser to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parent / "pages"

HEADINGS = {
    "what": "What it is",
    "why": "Why it matters",
    "found": "How it is found",
    "similar": "What looks like it",
    "do": "What to do",
    "example": "Example",
    "blind": "What the tool can't see",
}

_RULES = "Ledger rules: "
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, an item of a list or a piece of code; `kind` is text, item, or the language of the code."""

    kind: str
    text: str

    @property
    def is_code(self) -> bool:
        """Whether the lines have to stay as they are."""
        return self.kind not in ("text", "item")


@dataclass(frozen=True, slots=True)
class Page:
    """One finding, explained.

    Attributes:
        code: as reports name it: `K07`, `C2`, `chain_hash`, `entry-chunk`, `unknown`.
        name: of a kind, such as `late-remote-write`; the code where there is no other name.
        summary: one line without a final period.
        rules: ledger rules whose breach leads here.
        sections: blocks under each heading, by the keys of `HEADINGS`; without the commands.
        commands: command lines to run next.
    """

    code: str
    name: str
    summary: str
    rules: tuple[str, ...]
    sections: dict[str, tuple[Block, ...]]
    commands: tuple[str, ...]

    @property
    def title(self) -> str:
        """`K07 late-remote-write`, or the code alone."""
        return self.code if self.name == self.code else f"{self.code} {self.name}"


def load(code: str) -> Page:
    """The page of a code, read from its file."""
    return parse((PAGES / f"{code}.md").read_text(encoding="utf-8"))


def parse(text: str) -> Page:
    """A page from its Markdown.

    Raises: ValueError if headings are missing or out of order, which is a mistake of the package.
    """
    head, *parts = text.split("\n## ")
    title, _, rest = head.removeprefix("# ").partition("\n")
    code, _, name = title.partition(" ")
    intro = _blocks(rest)
    sections: dict[str, tuple[Block, ...]] = {}
    commands: list[str] = []
    titles = [part.partition("\n")[0] for part in parts]
    if titles != list(HEADINGS.values()):
        raise ValueError(f"{code} has the headings {titles}")
    for key, part in zip(HEADINGS, parts, strict=True):
        blocks = _blocks(part.partition("\n")[2])
        commands += [line for block in blocks if block.kind == "bash" for line in block.text.split("\n")]
        sections[key] = tuple(block for block in blocks if block.kind != "bash")
    rules = [block.text.removeprefix(_RULES) for block in intro if block.text.startswith(_RULES)]
    return Page(
        code=code,
        name=name or code,
        summary=intro[0].text,
        rules=tuple(word.strip("`") for line in rules for word in line.split(", ")),
        sections=sections,
        commands=tuple(commands),
    )


def _blocks(text: str) -> list[Block]:
    """Paragraphs, list items and code, in order; lines of a paragraph are joined."""
    blocks: list[Block] = []
    language: str | None = None
    lines: list[str] = []

    def close() -> None:
        if lines and language is not None:
            blocks.append(Block(language, "\n".join(lines)))
        elif lines:
            is_item = lines[0].startswith("- ")
            joined = " ".join(line.strip() for line in lines)
            blocks.append(Block("item" if is_item else "text", joined.removeprefix("- ")))
        lines.clear()

    for line in text.split("\n"):
        if line.startswith(_FENCE):
            close()
            language = line.removeprefix(_FENCE) if language is None else None
        elif language is None and (not line or line.startswith("- ")):
            close()
            if line:
                lines.append(line)
        else:
            lines.append(line)
    close()
    return blocks
