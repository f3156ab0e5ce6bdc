"""YAML as plain data, strictly: duplicate keys are errors, and every value's line is known."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvcanary_cli.capacity.command import read_text
from kvcanary_cli.errors import InputError

_MAX_DEPTH = 50
# Aliases can make a short file as large as it likes
_MAX_VALUES = 100_000


class YamlFile(NamedTuple):
    """A file's data, and the line of each value by its path (`$.pool.tokens`)."""

    path: str
    data: Any
    lines: dict[str, int]

    def error(self, message: str, *, at: str = "$", hint: str | None = None) -> InputError:
        """An InputError about the value at a path; the line is that of its nearest known parent."""
        line = self.line(at)
        where = self.path if line is None else f"{self.path}:{line}"
        return InputError(message, where=where, path=None if at == "$" else at, hint=hint)

    def line(self, at: str) -> int | None:
        """Line of the value at a path, or of its nearest parent that has one."""
        while at and at not in self.lines:
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        return self.lines.get(at)


def read_yaml(path: str) -> YamlFile:
    """Read one YAML document.

    Raises: InputError for a file that can't be read, isn't YAML, repeats a key, refers to itself, or nests
        deeper than any config does.
    """
    import yaml  # deferred: runs without a YAML file don't pay for it

    text = read_text(path)
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            lines: dict[str, int] = {}
            if node is not None:
                _walk(node, "$", path, lines, 0)
            data = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = path if mark is None else f"{path}:{mark.line + 1}"
        raise InputError(f"this is not YAML: {error.problem or error.context}", where=where) from error
    except yaml.YAMLError as error:
        raise InputError(f"this is not YAML: {' '.join(str(error).split())}", where=path) from error
    except RecursionError as error:
        raise InputError(f"values are nested deeper than {_MAX_DEPTH} levels", where=path) from error
    except ValueError as error:
        # dates such as 2026-99-99, and integers of thousands of digits
        raise InputError(f"a value can't be read: {error}", where=path) from error
    return YamlFile(path=path, data=data, lines=lines)


def _walk(node: Any, at: str, path: str, lines: dict[str, int], depth: int) -> None:
    """Note the line of every value, and refuse what plain data can't hold."""
    lines[at] = node.start_mark.line + 1
    if len(lines) > _MAX_VALUES:
        raise InputError(f"the file holds more than {_MAX_VALUES:,} values", where=f"{path}:{lines[at]}")
    if depth > _MAX_DEPTH:
        raise InputError(f"values are nested deeper than {_MAX_DEPTH} levels", where=f"{path}:{lines[at]}")
    if node.id == "sequence":
        for number, child in enumerate(node.value):
            _walk(child, f"{at}[{number}]", path, lines, depth + 1)
    elif node.id == "mapping":
        seen: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise InputError(
                    "a key is a list or a mapping, where a word is needed", where=f"{path}:{line}"
                )
            if key.value in seen:
                raise InputError(
                    f"the key `{key.value}` stands here again, it was given on line {seen[key.value]}",
                    where=f"{path}:{line}",
                    path=at if at != "$" else None,
                )
            seen[key.value] = line
            _walk(child, f"{at}.{key.value}", path, lines, depth + 1)
            lines[f"{at}.{key.value}"] = line
