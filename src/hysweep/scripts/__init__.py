"""Launch scripts of verl, read without being run, as experiments of hysweep."""

from hysweep.scripts.importer import Imported, import_script

__all__ = ["Imported", "import_script"]
