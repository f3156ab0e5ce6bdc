"""Reader of Weka's coding-agent traces (kv-cache-tester): one JSON object a file, which is one session.

Times are seconds from the session's start, `hash_ids` name whole blocks of `block_size` tokens, and `totals`
sums up all requests, which makes a checksum. Times inside a subagent are relative to its entry, except where
the first of them is not smaller than the entry's own: then they are the session's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvcanary_cli.trace.decode import NotJsonError, parse_strictly
from kvcanary_cli.trace.files import ByteReader, LineError
from kvcanary_cli.trace.json_rows import (
    JsonFormat,
    JsonLinesReader,
    inner,
    length,
    needed,
    text,
    time_ns,
    whole,
)
from kvcanary_cli.trace.pieces import own_id
from kvcanary_cli.trace.request_trace import SECOND_NS, ReadOptions, Row
from kvcanary_cli.trace.slots import describe

SCOPES = ("local", "global")
SUMS = {"parent_tokens": (False,), "subagent_tokens": (True,), "combined_tokens": (False, True)}


class WekaReader(JsonLinesReader):
    """See `Reader`; the whole file is one record, so an error anywhere in it makes all of it bad."""

    counts_up: bool | None = None
    known = frozenset(
        (
            *("id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens"),
            *("requests", "totals"),
        )
    )

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(options)
        self._models: list[str] = []
        self._sums: Counter[tuple[bool, str]] = Counter()
        self._subagents = 0
        self._rows: list[Row] = []

    def rows(self, source: ByteReader) -> Iterator[Row | LineError]:
        """All requests in order of time, or one error."""
        try:
            data = _object(source.read())
            self.unknown_keys.update(key for key in data if key not in self.known)
            self._session(data)
        except LineError as error:
            error.where = source.name
            yield error
            return
        yield from sorted(self._rows, key=lambda row: row.time_ns)

    def _session(self, data: dict[str, Any]) -> None:
        self.take_block_size(length(data, "block_size"), "$.block_size", is_first=True)
        scope = data.get("hash_id_scope", "local")
        if scope not in SCOPES:
            raise LineError(f"{describe(scope)} is neither local nor global", path="$.hash_id_scope")
        if "hash_id_scope" in data and scope == "local":
            self.notes.add("block ids are local: they mean nothing in another file")
        session = text(needed(data, "id"), "$.id")
        self._requests(needed(data, "requests"), "$.requests", session, start_ns=0, is_subagent=False)
        if len(self._models) > 1:
            self.notes.add(f"{len(self._models)} models ({', '.join(self._models)}), which share no KV")
        if "totals" in data:
            self._check_totals(inner(data, "totals"))
        else:
            self.notes.add("no totals, so nothing to check the sums against")

    def _requests(self, value: Any, at: str, session: str, *, start_ns: int, is_subagent: bool) -> None:
        if not isinstance(value, list):
            raise LineError(f"a list of requests is expected, found {describe(value)}", path=at)
        before = 0
        for index, item in enumerate(value):
            path = f"{at}[{index}]"
            if not isinstance(item, dict):
                raise LineError(f"an object is expected, found {describe(item)}", path=path)
            kind = needed(item, "type", path)
            time = start_ns + time_ns(needed(item, "t", path), SECOND_NS, "s", f"{path}.t")
            if time < before:
                self.notes.add("times go back inside the session, sorted")
            before = time
            if kind == "subagent":
                self._subagent(item, path, session, time)
            elif kind in ("s", "n"):
                self._request(item, path, session, time, is_subagent)
            else:
                raise LineError(
                    f"unknown type {describe(kind)}, s, n or subagent is expected", path=f"{path}.type"
                )

    def _subagent(self, item: dict[str, Any], path: str, session: str, time: int) -> None:
        self._subagents += 1
        name = text(item.get("agent_id", f"agent-{self._subagents}"), f"{path}.agent_id")
        requests = needed(item, "requests", path)
        start = time
        if isinstance(requests, list) and requests and isinstance(requests[0], dict):
            first = time_ns(
                needed(requests[0], "t", f"{path}.requests[0]"), SECOND_NS, "s", f"{path}.requests[0].t"
            )
            is_absolute = time > 0 and first >= time
            start = 0 if is_absolute else time
            self.notes.add(
                f"times inside a subagent are {'the session' + chr(39) + 's' if is_absolute else 'its own'}"
            )
        self._requests(requests, f"{path}.requests", f"{session}/{name}", start_ns=start, is_subagent=True)

    def _request(self, item: dict[str, Any], path: str, session: str, time: int, is_subagent: bool) -> None:
        tokens, output = length(item, "in", at=path), length(item, "out", at=path, least=0)
        if output == 0:
            self.notes.add("the output has 0 tokens")
        model = text(item.get("model", "unknown"), f"{path}.model")
        ids = self.block_ids(needed(item, "hash_ids", path), tokens, f"{path}.hash_ids")
        self._sums[is_subagent, "input"] += tokens
        self._sums[is_subagent, "output"] += output
        self._rows.append(
            Row(
                line=1,
                rid=f"{session}/{path.removeprefix('$.requests')}",
                time_ns=time,
                input_length=tokens,
                output_length=output,
                block_ids=tuple(own_id(model, block_id, self._models) for block_id in ids),
                session=session,
            )
        )

    def _check_totals(self, totals: dict[str, Any]) -> None:
        for name, parts in SUMS.items():
            if name not in totals:
                continue
            stated = inner(totals, name, "$.totals")
            for kind in ("input", "output"):
                path = f"$.totals.{name}"
                said = whole(needed(stated, kind, path), f"{path}.{kind}")
                found = sum(self._sums[part, kind] for part in parts)
                if said != found:
                    raise LineError(
                        f"{said:,} tokens are stated, the requests have {found:,}", path=f"{path}.{kind}"
                    )
        said = whole(totals.get("subagent_count", self._subagents), "$.totals.subagent_count")
        if said != self._subagents:
            raise LineError(
                f"{said:,} subagents are stated, there are {self._subagents:,}",
                path="$.totals.subagent_count",
            )


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = parse_strictly(data.strip())
    except NotJsonError as error:
        if "extra data" in error.message:
            raise LineError(
                "more than one object, one session a file is expected: block ids of several sessions must not be "
                "joined, as they mean nothing outside their own"
            ) from None
        raise
    if not isinstance(found, dict):
        raise LineError(f"an object is expected, found {describe(found)}", path="$")
    return found


FORMAT = JsonFormat(name="weka", title="Weka agent trace", make=WekaReader)
