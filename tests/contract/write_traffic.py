"""Write the committed table of bytes per client and message (``make traffic``)."""

import json
from pathlib import Path

from plures.contract import Bench, subjects, traffic_row


def main() -> None:
    table = {subject.name: traffic_row(Bench(subject)) for subject in subjects()}
    path = Path(__file__).parent / "traffic.json"
    path.write_text(json.dumps(table, indent=2) + "\n")
    print(f"wrote {path.name}: {len(table)} rows")


if __name__ == "__main__":
    main()
