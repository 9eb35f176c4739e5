"""The application: a study as a value, from Python or TOML, that is checked, run, resumed, opened and exported."""

from plures.app.check import ALL
from plures.app.folder import StudyFolder, open_study
from plures.app.mistakes import StudySource
from plures.app.ownership import claim
from plures.app.parts import DataPart, PlanPart, TunePart
from plures.app.reading import make_study, read_source, read_study
from plures.app.running import Listener, compare, run_study, tell_forecasts
from plures.app.study import Study
from plures.app.vary import VARY, Variant, make_variants
