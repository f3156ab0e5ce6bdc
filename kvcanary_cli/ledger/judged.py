"""Which rules can be judged with what the producer of a trace was able to see.

A rule that needs a kind of event the producer could not record would find breaches that nobody committed.
"""

from __future__ import annotations

from kvcanary_cli.trace.header import Header

# events without which a rule can't tell; rules that need nothing but their own event are not listed
NEEDS: dict[str, tuple[str, ...]] = {
    "alloc-held": ("free", "evict"),
    "alloc-partial-page": ("alloc", "free"),
    "free-unheld": ("alloc", "share", "publish"),
    "row-names-released": ("alloc", "free", "share", "map"),
    "row-names-foreign": ("alloc", "free", "share", "map"),
    "tree-names-released": ("alloc", "free", "publish", "evict"),
    "write-unheld": ("alloc",),
    "write-foreign": ("alloc", "share"),
    "write-shared": ("free", "evict"),
    "write-outside-row": ("share", "map"),
    "write-after-free": ("alloc", "free"),
    "leftover": ("alloc", "share"),
    "kv-foreign": ("alloc", "share"),
    "share-unheld": ("alloc", "publish"),
    "share-unwritten": ("alloc",),
    "publish-unwritten": ("alloc",),
    "xfer-to-old-epoch": ("alloc", "free"),
    "reload-over-published": ("free", "publish", "evict"),
    "offload-unwritten": ("alloc",),
    "offload-foreign": ("alloc", "share", "publish"),
    "length-jump": ("alloc", "share"),
    "window-unmapped": ("swa_map",),
    "window-reused": ("swa_map",),
}
_WINDOW_RULES = ("window-unmapped", "window-reused")


def unjudged_rules(header: Header) -> dict[str, list[str]]:
    """Rules that this trace can't be judged by, each with the kinds of event that its producer could not see."""
    if header.records is None:
        return {}
    recorded = set(header.records)
    has_map = header.group("full") is not None and header.group("swa") is not None
    missing = {
        rule: [kind for kind in needs if kind not in recorded]
        for rule, needs in NEEDS.items()
        if has_map or rule not in _WINDOW_RULES
    }
    return {rule: kinds for rule, kinds in missing.items() if kinds}
