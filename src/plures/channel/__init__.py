"""Channels: what happens to uploads on the way, one file each. Importing this package registers them all."""

from plures.registry import import_modules

import_modules(__name__, __path__)
