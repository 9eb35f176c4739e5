"""Draw the pictures of these pages: `make pictures`."""

from __future__ import annotations

from pathlib import Path

from plures.data import load
from plures.report.federation import picture

HERE = Path(__file__).parent
POOL = "digits:num_clients=1,num_groups=1"
PICTURES = {
    "label-skew": f"{POOL}|dirichlet:num_clients=24,alpha=0.3",
    "quantity-skew": f"{POOL}|zipf:num_clients=24,exponent=1.2",
    "feature-shift": f"{POOL}|iid:num_clients=24|feature_shift:kinds=none+invert+blur+background+noise+rotation",
    "concept-shift": f"{POOL}|iid:num_clients=24|concept_shift:dial=0.5,num_groups=2",
    "planted-clusters": f"{POOL}|dirichlet:num_clients=24,alpha=0.5|rotation_groups:num_groups=4",
    "natural-clients": "logistic_clusters",
}


def main() -> None:
    for name, text in PICTURES.items():
        print(picture(load(text), HERE / f"{name}.png"))


if __name__ == "__main__":
    main()
