"""Personalizers: each turns a method into another that serves each client a model of its own. Importing this package registers them all."""

from plures.registry import import_modules

import_modules(__name__, __path__)
