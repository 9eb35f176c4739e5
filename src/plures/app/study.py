"""A whole study, and what it comes to on its data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from plures.app.check import ALL, PreparedStudy, inspect
from plures.app.mistakes import Findings, StudySource
from plures.app.parts import DataPart, PlanPart, Seed, StudySection, TunePart
from plures.app.toml import as_toml
from plures.builders import build_attack, build_channel, build_method
from plures.data import Federation
from plures.errors import UserError
from plures.method import Channel, Method
from plures.registry import import_file
from plures.types import Model

if TYPE_CHECKING:
    from plures.app.folder import StudyFolder
    from plures.study.grid import StudyProgress


def _checked_cohort(given: Any) -> Any:
    # One objection instead of pydantic's two, which would name places of its own.
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError("a valid integer or a valid string")
    return given


class InvalidStudy(UserError):
    """Settings of other types or names than a study has; ``found`` is all that is wrong."""

    def __init__(self, found: ValidationError) -> None:
        self.found = found
        said = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}, got {one['input']!r}" for one in found.errors())
        super().__init__(f"the study: {'; '.join(said)}")


class Study(StudySection):
    """A whole study; the defaults are those of ``plures compare``. ``methods = "all"`` is all that fit.

    ``imports`` (``import`` in a file) are Python files with methods, models or data of one's own. ``references``: with
    scores of predictors that are not federated beside it. ``patience``: every method is
    played for up to four times the rounds, until valid rows have not improved for so many evaluations; 0 plays the rounds.
    A study of fewer rounds than so many evaluations take plays its rounds.
    """

    imports: tuple[str, ...] = ()
    data: DataPart = DataPart()
    model: str | None = None
    plan: PlanPart = PlanPart()
    norm: Literal["share", "local", "affine", "recalibrate"] = "share"
    methods: tuple[str, ...] | None = Field(default=None, min_length=1)
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    rounds: int = Field(default=60, ge=1, strict=True)
    cohort: Annotated[int | str, BeforeValidator(_checked_cohort)] = "all"
    channels: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    executor: str = "auto"
    eval_every: int = Field(default=10, ge=1)
    patience: int = Field(default=3, ge=0, strict=True)
    checkpoint_every: int | None = Field(default=None, ge=1)
    keep_models: bool | None = None
    references: bool = True
    track: tuple[str, ...] = ()
    tune: TunePart | None = None

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InvalidStudy(error) from None

    @model_validator(mode="before")
    @classmethod
    def _as_in_a_file(cls, given: Any) -> Any:
        """``import`` is no name that Python takes."""
        return {"imports" if name == "import" else name: value for name, value in dict(given).items()}

    @field_validator("imports")
    @classmethod
    def _import_files(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for path in given:
            import_file(Path(path))
        return tuple(str(Path(path).resolve()) for path in given)

    @field_validator("imports", "attack", "track", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("methods", mode="before")
    @classmethod
    def _every_one(cls, given: Any) -> Any:
        return (ALL,) if given == ALL else given

    @property
    def takes_all(self) -> bool:
        """Whether all methods that fit are asked for."""
        return ALL in (self.methods or ())

    def all_channels(self, seen: Federation) -> tuple[Channel, ...]:
        """What happens to uploads on the way: attacks first, they are made by clients."""
        attacks = [build_attack(text, seen.known) for text in self.attack]
        return (*attacks, *(build_channel(text, seen.known) for text in self.channels))

    @property
    def text(self) -> str:
        """The study as a file that ``plures run`` takes: what is not as by default."""
        plain = self.model_dump(mode="json", exclude_defaults=True)
        return as_toml({**plain, "data": {"name": self.data.name, **plain.get("data", {})}})

    @property
    def running(self) -> dict[str, Any]:
        """The settings of every run, but for its seed and channels."""
        return {name: getattr(self, name) for name in ("rounds", "cohort", "executor", "eval_every")}

    def build_method(self, text: str, model: Model, seen: Federation, *, lr: float | None = None) -> Method:
        """The method a text names, as the study trains it; with another step size, where one was chosen."""
        return build_method(text, model, plan=self.plan.build(lr), facts=seen.known, norm=self.norm)

    def federations(self) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients."""
        return self.data.spec.load()

    def prepare(
        self, source: StudySource | None = None, *, data: tuple[Federation, Federation | None] | None = None
    ) -> PreparedStudy:
        """The study with everything built once; one error lists every mistake.

        ``source`` is the file that the study was read from: mistakes are then shown with their lines. ``data`` are
        (seen, unseen) clients, where they are loaded already.
        """
        findings = Findings()
        prepared = inspect(self, findings, data=data)
        if findings.mistakes or prepared is None:
            findings.refuse(source)
        return prepared

    def check(self, source: StudySource | None = None) -> tuple[Federation, Federation | None]:
        """(seen, unseen) clients, after everything was built once; one error lists every mistake."""
        prepared = self.prepare(source)
        return prepared.seen, prepared.unseen

    def run(self, out: str | Path, *, progress: Callable[[StudyProgress], None] | None = None) -> StudyFolder:
        """Run the study into a folder, as ``plures run`` does; finished runs that lie there are not run again.

        The folder then has tables, a picture and a page, and can be opened again: ``plures.open_study(out)``.
        """
        from plures.app.running import Listener, run_study

        return run_study(self, Path(out), Listener(progress=lambda: nullcontext(progress)))
