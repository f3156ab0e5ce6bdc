"""Reader of Bailian (Qwen) usage traces: JSON Lines with chats, times in seconds and prefix block ids.

Format as in alibaba-edu/qwen-bailian-usagetraces-anon: 16 tokens an id, partial blocks counted, ids shared by
all chats. Turns of one conversation name the turn before in `parent_chat_id`, -1 for none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvcanary_cli.trace.files import LineError
from kvcanary_cli.trace.json_rows import JsonFormat, JsonLinesReader, length, needed, time_ns, whole
from kvcanary_cli.trace.request_trace import SECOND_NS, ReadOptions, Row

BLOCK_TOKENS = 16
TYPES = ("text", "search", "image", "file", "thinking")


class BailianReader(JsonLinesReader):
    """See `Reader`; the conversation of a turn is named after its first chat."""

    known = frozenset(
        (
            *("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
            *("type", "turn", "hash_ids"),
        )
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options, BLOCK_TOKENS)
        # chat -> (line, first chat of its conversation); unknown parent -> line of its first child
        self._chats: dict[int, tuple[int, int]] = {}
        self._unknown: dict[int, int] = {}

    def object_rows(self, data: dict[str, Any], number: int) -> Iterable[Row]:
        """One turn."""
        chat, root = self._linked(data, number)
        time = time_ns(needed(data, "timestamp"), SECOND_NS, "s", "$.timestamp")
        tokens, output = length(data, "input_length"), self.output(data, "output_length", number)
        if data.get("type") not in TYPES:
            self.notes.add("the type is none of " + ", ".join(TYPES), number)
        ids = None
        if "hash_ids" in data:
            ids = self.block_ids(data["hash_ids"], tokens, "$.hash_ids")
        else:
            self.notes.add("no hash_ids: nothing is known to be shared", number)
        self._chats[chat] = (number, root)
        return (
            Row(
                line=number,
                rid=f"chat-{chat}",
                time_ns=time,
                input_length=tokens,
                output_length=output,
                block_ids=ids,
                session=f"chat-{root}",
            ),
        )

    def _linked(self, data: dict[str, Any], number: int) -> tuple[int, int]:
        """The chat, and the first one of its conversation."""
        chat = whole(needed(data, "chat_id"), "$.chat_id")
        parent = whole(needed(data, "parent_chat_id"), "$.parent_chat_id")
        turn = whole(needed(data, "turn"), "$.turn")
        if chat in self._chats:
            raise LineError(
                f"chat {chat} is the one of line {self._chats[chat][0]} already", path="$.chat_id"
            )
        if chat in self._unknown:
            raise LineError(
                f"chat {chat} is the parent of line {self._unknown[chat]}, a parent stands before its children",
                path="$.chat_id",
            )
        if turn < 1:
            raise LineError(f"turn {turn} is not possible, the first is 1", path="$.turn")
        if parent < -1 or parent == chat:
            raise LineError(f"chat {parent} can't be the parent of chat {chat}", path="$.parent_chat_id")
        if parent == -1:
            if turn > 1:
                self.notes.add("a later turn without a parent", number)
            return chat, chat
        if turn == 1:
            raise LineError(
                f"turn 1 has no turn before it, found chat {parent}; -1 is expected", path="$.parent_chat_id"
            )
        if parent in self._chats:
            return chat, self._chats[parent][1]
        self._unknown.setdefault(parent, number)
        self.notes.add("the parent is not in the file", number)
        return chat, parent


FORMAT = JsonFormat(name="bailian", title="Bailian usage trace", make=BailianReader)
