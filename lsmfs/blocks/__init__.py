"""The bytes of objects: bodies in, as blocks and packs of the object store, and back out."""

from lsmfs.blocks.addresses import locate
from lsmfs.blocks.bodies import ALONE, Bodies, Layout
from lsmfs.blocks.reader import read_body
from lsmfs.blocks.small import SmallBodies

__all__ = ["ALONE", "Bodies", "Layout", "SmallBodies", "locate", "read_body"]
