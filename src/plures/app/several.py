"""Several studies from one file, run one after another into one folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plures.app.mistakes import StudySource
from plures.app.ownership import FREE
from plures.app.reading import read_source
from plures.app.running import run_study
from plures.app.vary import Variant, make_variants
from plures.errors import BadFile, BadValue, UserError
from plures.report.variants import write_variants
from plures.study.disk import layout
from plures.study.variants import Variants, is_varied, open_variants, read_index, write_index
from plures.wording import counted


@dataclass(frozen=True)
class VariantRun:
    """One of the variants that begins, and the seconds that earlier ones took that had to be run."""

    variants: Sequence[Variant]
    index: int
    times: Sequence[float]


def run_variants(
    file: str | Path | StudySource,
    out: str | Path,
    *,
    run: Callable[[Variant, Path], object] = lambda one, folder: run_study(one.study, folder),
    begin: Callable[[VariantRun], None] = lambda now: None,
    end: Callable[[Variants, Path], None] = lambda found, page: None,
) -> Variants:
    """Run every study of a file with ``[vary]`` into a folder of its own in ``out``, which ``plures.open_variants`` opens.

    Runs that lie there finished are not run again. One that fails does not keep the others from running; it is said at the
    end. ``run`` runs one, ``begin`` hears that one begins, and ``end`` has what all came to and its page.
    """
    source, out = file if isinstance(file, StudySource) else read_source(Path(file)), Path(out)
    variants, failed, times = claim_variants(out, source), dict[str, UserError](), list[float]()
    for index, one in enumerate(variants):
        begin(VariantRun(variants, index, times))
        began, before = time.monotonic(), layout.count_finished(out / one.folder)
        try:
            run(one, out / one.folder)
        except UserError as error:
            failed[one.label] = error
        if layout.count_finished(out / one.folder) > before:
            times.append(time.monotonic() - began)
    if len(failed) == len(variants) and not any(layout.count_finished(out / one.folder) for one in variants):
        raise next(iter(failed.values()))
    found = open_variants(out)
    end(found, write_variants(found))
    if failed:
        raise UserError(f"{len(failed)} of {counted(len(variants), 'variant')} failed: {'; '.join(failed)}")
    return found


def claim_variants(out: Path, source: StudySource) -> list[Variant]:
    """The studies of a file with ``[vary]``, after making ``out`` theirs; a folder that holds others is refused."""
    variants = make_variants(source)
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder")
    if (out / layout.STUDY).exists():
        raise BadFile(f"{out} holds one study; use another folder for several")
    if is_varied(out):
        variants = _known(out, source, variants)
    out.mkdir(parents=True, exist_ok=True)
    write_index(out, [(one.label, one.folder, one.varied) for one in variants])
    layout.write_bytes(out / layout.RESOLVED, source.text.encode())
    return variants


def _known(out: Path, source: StudySource, variants: Sequence[Variant]) -> list[Variant]:
    """The variants under the labels and folders that they have; the order of settings in the file may be another one."""
    if (out / layout.RESOLVED).exists():
        before, now = read_source(out / layout.RESOLVED).values, source.values
        other = [name for name in {**before, **now} if name not in FREE and before.get(name) != now.get(name)]
        if other:
            raise BadFile(f"{out} holds studies with other settings ({', '.join(other)}); use another folder")
    known = [(label, folder, varied) for label, (folder, varied) in read_index(out).items()]
    found = []
    for one in variants:
        place = next(((label, folder) for label, folder, varied in known if varied == dict(one.varied)), None)
        found.append(one if place is None else replace(one, label=place[0], folder=place[1]))
    return found
