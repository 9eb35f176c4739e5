"""Advice from data: whether clients should federate, which family of methods fits, and what each client gets.

=================  =====================================================  ==================
``advise``         which family of methods fits                           ``plures advise``
``estimate_worth`` whether to federate, how much, who gains               ``plures worth``
``decide_study``   what every client should take, by training             ``plures decide``
``guide``          the same, of a federation made in Python
``decide``         the same, from runs that are there
``fuse_clients``   which clients share a model, with proof                ``plures fuse``
``run_tradeoff``   what a degree of collaboration costs and buys          ``plures tradeoff``
=================  =====================================================  ==================

Each gives an ``Advice``: a verdict, sentences, tables and figures as evidence, facts, and ``save(folder)``, which writes what the command
leaves. ``decide_study`` and ``run_tradeoff`` write into a folder themselves.
"""

from plures.advise.advice import Advice
from plures.advise.decisions import Decisions, decide, guide
from plures.advise.families import DECISIONS, ENDS, FAMILIES, ModelFamily
from plures.advise.family_advice import FamilyAdvice, advise
from plures.advise.fusion import FusedModels, fuse_clients, task_loss
from plures.advise.study_decisions import decide_study, default_options
from plures.advise.tradeoff import Tradeoff
from plures.advise.tradeoff_runs import run_sweep, run_tradeoff
from plures.advise.worth import Worth, WorthOptions
from plures.advise.worth_estimate import estimate_worth
