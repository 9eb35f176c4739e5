"""Attacks: what attackers send or learn from, one file each kind. Importing this package registers them all."""

from plures.registry import import_modules

import_modules(__name__, __path__)
