"""Incidents as they turn up during a run: a first word, which the report at the end may correct."""

from __future__ import annotations

from collections.abc import Callable

from kvcanary_cli.ledger.ledger import Ledger
from kvcanary_cli.replay.diagnose import diagnose
from kvcanary_cli.replay.incidents import Incident
from kvcanary_cli.replay.rules import Context
from kvcanary_cli.replay.stories import Stories

MOST_LOOKS = 20_000
"""Stories and breaches that may be diagnosed early, all looks together: a run full of damage is not slowed down."""

Announce = Callable[[int, Incident], None]


class Watch:
    """Diagnoses early, only when something new has gone wrong, and tells of each incident once.

    Args:
        context: facts about the run so far, which the rules need.
        announce: called with the step and the incident.

    Attributes:
        num_told: incidents told of so far.
    """

    def __init__(
        self, ledger: Ledger, stories: Stories, context: Callable[[], Context], announce: Announce
    ) -> None:
        self._ledger = ledger
        self._stories = stories
        self._context = context
        self._announce = announce
        self._known: set[object] = set()
        self._budget = MOST_LOOKS
        self._seen = (0, 0)
        self.num_told = 0
        self._num_stories = 0

    def note(self, num_stories: int) -> None:
        """So many slots failed for the first time."""
        self._num_stories += num_stories

    def look(self, step: int) -> None:
        """Called after each forward; costs one comparison when nothing is new."""
        seen = (len(self._ledger.breaches), self._num_stories)
        if seen == self._seen:
            return
        self._seen = seen
        self._budget -= sum(seen)
        if self._budget >= 0:
            self.tell(step, diagnose(self._ledger.breaches, self._stories.all(), self._context()))

    def tell(self, step: int, incidents: list[Incident]) -> None:
        """Announce those of which nothing was said yet."""
        for incident in incidents:
            marks = _marks(incident)
            if not marks & self._known:
                self.num_told += 1
                self._announce(step, incident)
            self._known |= marks


def _marks(incident: Incident) -> set[object]:
    """What an incident is known by while it grows: its slots and the lines of its breaches."""
    marks: set[object] = {(incident.group, slot) for slot in incident.slots}
    marks |= {(story.group, story.slot) for story in incident.stories}
    return marks | {breach.line for breach in incident.breaches}
