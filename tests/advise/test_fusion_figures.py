"""Pictures of a fused federation."""

import polars as pl

from plures.advise.fusion import FusedModels
from plures.advise.linear_rows import LinearRows
from plures.report.figures import save_figures
from plures.solvers import convex_clustering


def test_a_fused_federation_is_drawn(tmp_path):
    points = [[[1.0]] * 4] * 6
    targets = [[0.0, 0.1, 0.0, 0.1]] * 3 + [[1.0, 1.1, 1.0, 1.2]] * 3
    fitted = convex_clustering(loss="least_squares", graph="complete", num_lams=6).fit(points, targets)
    rows = LinearRows(tuple("abcdef"), (), {}, True)
    fused = FusedModels(fitted, rows, None, "rmse", pl.DataFrame())

    found = save_figures(fused.figures, tmp_path)

    assert [path.name for path in found] == ["path.png", "clusters.png", "bands.png"]
    assert all(path.stat().st_size > 1000 for path in found)
