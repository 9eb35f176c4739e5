"""What a check raises."""

from plures.errors import PluresError


class ContractBroken(PluresError):
    """A method does not keep the contract; says which check, and what was seen."""
