"""Partitioners: Federation -> Federation, each seeded; names joined by ``|`` compose them.

A *dealer* deals all examples anew among new clients, inside each group and domain there is, and splits every
client's rows anew. The others keep the clients: they plant groups, shift features or shift concepts.
"""

from plures.data.partition.groups import label_permutation_groups, label_set_groups, rotation_groups
from plures.data.partition.labels import classes, dirichlet, shards
from plures.data.partition.quantity import draw_clients, iid, lognormal, natural, zipf
from plures.data.partition.shift import concept_shift, feature_shift, rotation
