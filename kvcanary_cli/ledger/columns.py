"""Columns of the ledger's arrays: one row a slot, one a holder cell, one a page-table row.

All start as zeros, so that slots nobody touches cost no memory: names are numbered from 1, cells from 1, event
lines are 1-based, and a mark with line 0 was never set.

Numba keeps compiled loops with these numbers inside, and looks at the loops' own files only: after a change here,
delete `kvcanary_cli/ledger/__pycache__`.
"""

# a slot; three cache lines: what most events touch, marks, writers
EPOCH = 0
FIRST = 1  # first holder cell
NUM = 2  # holder cells
SEEN_GAP = 3  # gap count up to which the row was brought up to date
FLAGS = 4
SEEN = 5  # number of the call that named the slot last
PUBLISHED_KEY = 6  # number of the key's parts, 0: none given
DUBIOUS_COUNT = 7  # releases that let the allocator hand it out once too often
ALLOC_STEP, ALLOC_LINE, ALLOC_BY, ALLOC_WHY = 8, 9, 10, 11
TOKEN = 12
PUBLISHED_TOKEN = 13
CHECKED = 14  # last verify step + 1, as far as written back from rows
MAPPED_BY = 15  # window slots: the full slot that maps here
LEFT_STEP, LEFT_LINE, LEFT_BY, LEFT_WHY = 16, 17, 18, 19  # the last holder that gave it up
RELEASE_STEP, RELEASE_LINE, RELEASE_BY, RELEASE_WHY = 20, 21, 22, 23
PREVIOUS_EPOCH, PREVIOUS_HOLDER, PREVIOUS_FIRST, PREVIOUS_LAST = 24, 25, 26, 27
DUBIOUS_STEP, DUBIOUS_LINE, DUBIOUS_BY, DUBIOUS_WHY = 28, 29, 30, 31
BYTES_AT = 32  # six columns of the last byte writer, see WRITE_*
STAMP_AT = 38  # and of the last stamp writer
SLOT_COLUMNS = 48

# a last writer, relative to BYTES_AT or STAMP_AT
WRITE_NAME, WRITE_STEP, WRITE_LINE, WRITE_HOW, WRITE_ID, WRITE_POSITION = range(6)

# bits of FLAGS
IS_WRITTEN = 1  # since its allocation
HAS_TOKEN = 2
HAS_PUBLISHED_TOKEN = 4
IS_OPEN = 8  # a gap hides who else may hold it, and what was written
IS_FORCED = 16  # released by somebody who did not hold it, and not handed out since

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

# a page-table row
ROW_NAME = 0  # its request; NOBODY, or UNKNOWN after a gap
ROW_FORMER = 1  # the request that had it before
ROW_LENGTH = 2  # the request's length, -1 unknown
ROW_EXTENT = 3  # columns mapped since the bind end here
ROW_STRICT = 4  # 1: the last forward named how many tokens it keeps
ROW_ACCEPTED, ROW_LENS, ROW_PREFIX = 5, 6, 7  # of the last forward
ROW_SEEN = 8  # number of the call that named the row last
ROW_CHECKED_STEP = 9  # step + 1 of the last forward that verified it
ROW_CHECKED_TO = 10  # columns that it verified
ROW_COLUMNS = 11

# counters that compiled code shares
FREE_HEAD, USED, NUM_FREE, CALLS, GAPS = range(5)
NUM_COUNTERS = 5

# names that have a number of their own
UNKNOWN = -1
NOBODY = 0
CACHE_NAME = 1

# what a call found wrong with a slot
HELD_ALREADY = 1
IS_RESERVED = 2
NOT_HELD = 4  # nobody holds it
NOT_THEIRS = 8  # others hold it
LISTED_TWICE = 16
SHARED = 32  # the writer holds it, and others do
OUT_OF_RANGE = 64
OUTSIDE_ROW = 128
SPILLED = 256
LEFTOVER = 512  # it stood in the row before the request was bound
WRITTEN_TWICE = 1024  # in one forward
NO_WINDOW_SLOT = 2048  # in-window position that the map sends nowhere
FOREIGN_WINDOW_SLOT = 4096  # the map sends it to a slot that another one took over
UNWRITTEN = 8192
OTHER_TOKEN = 16384
OTHER_KEY = 32768

# what a forward found wrong with a lane
ROW_TWICE = 1
POSITION_DRIFT = 2
LENGTH_MISMATCH = 4
LENGTH_JUMP = 8
