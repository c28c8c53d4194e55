"""The takeaway of the cost model, "predictable to a few percent", against what the editions recorded."""

import json
from pathlib import Path

import pytest

EDITIONS = Path(__file__).parents[2] / "gallery" / "editions"


@pytest.mark.parametrize("lab", ["predict-then-measure", "shaped-network"])
def test_recorded_predictions_miss_by_a_few_percent(lab):
    found = {}
    for path in EDITIONS.glob(f"*/labs/{lab}.json"):
        error = json.loads(path.read_text(encoding="utf-8"))["values"]["mean_error"]["value"]
        if isinstance(error, float):  # else it was not run there
            found[path.parents[1].name] = error
    assert found
    assert all(error < 10 for error in found.values()), found
