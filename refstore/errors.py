"""Every error that lsmfs raises, grouped by what the caller does next.

    Error
    ├── NotFound        it is not there: create it, or correct the name
    ├── AlreadyExists   it is there already: use it, or choose another name
    ├── Conflict        somebody else changed it first: read again, decide again
    │   ├── BranchReplaced   the branch name has a new life: open it again
    │   ├── ViewChanged      a conditional write's view is old: decide again
    │   ├── WriterUnknown    this writer's life has ended: open a new one
    │   ├── GenerationStale  the object was made before the garbage floor: make it again
    │   └── LayersFull       too many tables or seals: wait for the compactor or a commit
    ├── Invalid         the request cannot be right: correct it
    │   ├── NoChanges        there is nothing to commit or merge
    │   └── DirtyBranch      it has changes that are not committed: commit them first
    ├── Denied          not allowed: ask for the right
    ├── Unavailable     it could not be done now: try again
    │   └── OutcomeUnknown   it may or may not have been done: look, then decide
    └── Corrupt         stored bytes are not what was written: stop, and recover

Anything else that escapes is a bug. Messages carry names and values and say what to do.
"""


class Error(Exception):
    """The root of all lsmfs errors."""


class NotFound(Error):
    """What was asked for does not exist."""


class AlreadyExists(Error):
    """What was to be created exists."""


class Conflict(Error):
    """A condition did not hold: somebody else was first."""


class BranchReplaced(Conflict):
    """The branch was deleted and created again since it was opened."""


class ViewChanged(Conflict):
    """What readers of the branch see has changed since the condition was decided."""


class WriterUnknown(Conflict):
    """The branch does not know this writer, and it may not begin here."""


class GenerationStale(Conflict):
    """The referenced object was named before the garbage collection floor."""


class LayersFull(Conflict):
    """The branch has as many tables or seals as it may have."""


class Invalid(Error):
    """The request can never succeed as it is."""


class NoChanges(Invalid):
    """A commit or merge would record nothing."""


class DirtyBranch(Invalid):
    """The branch has changes that are not committed."""


class Denied(Error):
    """The caller may not do this."""


class Unavailable(Error):
    """A store could not be reached, or was too slow, or too busy."""


class OutcomeUnknown(Unavailable):
    """The answer was lost; the change may have taken effect."""


class Corrupt(Error):
    """Stored bytes fail their checksum, or contradict each other."""
