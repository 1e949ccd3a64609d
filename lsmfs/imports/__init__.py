"""Imports: objects that exist already become entries of a branch, all at once, and no byte of them is copied.

source = open_source("s3://bucket/raw?region=eu-west-1", os.environ)
imported = await repository.import_objects(source, "main", "raw/")

`importer` has the flow, `source` what can be imported, `state` what is remembered of an import that has not ended.
"""

from lsmfs.imports.importer import Imported, Importer
from lsmfs.imports.source import Skip, Source, count, open_source
from lsmfs.imports.work import Progress

__all__ = ["Imported", "Importer", "Progress", "Skip", "Source", "count", "open_source"]
