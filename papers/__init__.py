"""The papers behind plures, each repeated with its code, its results and its tests: in the repository, not in the package.

A folder per paper: ``run.py`` makes the rows that are held to the published numbers, the files beside it do the work,
``figures.py`` draws, ``results/`` holds what the pages of docs/ show, ``tests/`` are run by ``make test``.
"""
