"""Methods: one file each, families with shared parts as packages. Importing this package registers them all."""

from plures.registry import import_modules

import_modules(__name__, __path__)
