"""Columns of the ledger's arrays: one row a slot, one a holder cell, one a page-table row.

All start as zeros, so that slots nobody touches cost no memory: names are numbered from 1, cells from 1, event
lines are 1-based, and a mark with line 0 was never set.
"""

# a slot
EPOCH = 0
FIRST = 1  # first holder cell
NUM = 2  # holder cells
SEEN_GAP = 3  # gap count up to which the row was brought up to date
FLAGS = 4
TOKEN = 5
PUBLISHED_TOKEN = 6
PUBLISHED_KEY = 7  # number of the key's parts, 0: none given
ALLOC_STEP, ALLOC_LINE, ALLOC_BY, ALLOC_WHY = 8, 9, 10, 11
RELEASE_STEP, RELEASE_LINE, RELEASE_BY, RELEASE_WHY = 12, 13, 14, 15
LEFT_STEP, LEFT_LINE, LEFT_BY, LEFT_WHY = 16, 17, 18, 19  # the last holder that gave it up
DUBIOUS_STEP, DUBIOUS_LINE, DUBIOUS_BY, DUBIOUS_WHY, DUBIOUS_COUNT = 20, 21, 22, 23, 24
PREVIOUS_EPOCH, PREVIOUS_HOLDER, PREVIOUS_FIRST, PREVIOUS_LAST = 25, 26, 27, 28
BYTES_AT = 29  # six columns of the last byte writer, see WRITE_*
STAMP_AT = 35  # and of the last stamp writer
CHECKED = 41  # last verify step + 1, as far as written back from rows
SEEN = 42  # number of the call that named the slot last
MAPPED_BY = 43  # window slots: the full slot that maps here
SLOT_COLUMNS = 44

# a last writer, relative to BYTES_AT or STAMP_AT
WRITE_NAME, WRITE_STEP, WRITE_LINE, WRITE_HOW, WRITE_ID, WRITE_POSITION = range(6)

# bits of FLAGS
IS_WRITTEN = 1  # since its allocation
HAS_TOKEN = 2
HAS_PUBLISHED_TOKEN = 4
IS_OPEN = 8  # a gap hides who else may hold it, and what was written

# WRITE_HOW: one of these, plus bits
FORWARD, XFER, RELOAD, KV, PAD = 1, 2, 3, 4, 5
HOW_MASK = 7
IN_ROW = 8
HELD = 16
WRITE_NAMES = ("", "forward", "xfer", "reload", "kv", "pad")

# how a holder came, and why a slot was released
BY_ALLOC, BY_SHARE, BY_PUBLISH, BY_HOLD, BY_MAP = 1, 2, 3, 4, 5
HOLD_NAMES = ("", "alloc", "share", "publish", "hold", "map")
WHY_FREE, WHY_EVICT, WHY_FORCE, WHY_UNMAP = 1, 2, 3, 4
RELEASE_NAMES = ("", "free", "evict", "force", "unmap")

# a holder cell; PLACE is the position + 1 of a cache entry
CELL_NAME, CELL_STEP, CELL_LINE, CELL_HOW, CELL_EPOCH, CELL_PLACE, CELL_NEXT = range(7)
CELL_COLUMNS = 7

# counters that compiled code shares
FREE_HEAD, USED, NUM_FREE, CALLS, GAPS = range(5)
NUM_COUNTERS = 5

# names that have a number of their own
NOBODY = 0
CACHE_NAME = 1

# what a call found wrong with a slot
HELD_ALREADY = 1
IS_RESERVED = 2
NOT_HELD = 4  # nobody holds it
NOT_THEIRS = 8  # others hold it
LISTED_TWICE = 16
