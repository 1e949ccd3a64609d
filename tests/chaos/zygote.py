"""What the fork server imports, and nobody else: all that a worker needs, and that it ends when pytest ends.

By itself it would live as long as one of its workers does, and they live as long as it does.
"""

import lsmfs.objectstore.bucket
import refstore.drivers.redis
import refstore.drivers.sqlite
from tests.chaos.worker import die_with_parent

die_with_parent()

__all__ = ["lsmfs", "refstore"]
