"""Real data sets by name, one module each; their files lie in a folder that the user names.

Importing this package registers them all.
"""

from plures.registry import import_modules

import_modules(__name__, __path__)
