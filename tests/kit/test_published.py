"""Measurements of other people's clusters: the file is sound, and the labs predict as well as the page says."""

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path

from ddplab.runtime import evidence

LABS = Path(__file__).parents[2] / "gallery" / "performance"
FILE = LABS / "published.json"
TABLES = {table["id"]: table for table in json.loads(FILE.read_text(encoding="utf-8"))["tables"]}
COLLECTIVE = [key for key, table in TABLES.items() if table["kind"] == "all-reduce"]
TRAINING = [key for key, table in TABLES.items() if table["kind"] == "training"]
THROTTLED = [key for key, table in TABLES.items() if table["kind"].startswith("throttled")]


def test_there_are_enough_tables():
    assert len(COLLECTIVE) + len(TRAINING) + len(THROTTLED) == len(TABLES)
    assert len(COLLECTIVE) >= 8
    assert len(TRAINING) >= 6
    assert len({TABLES[key]["source"]["repository"] for key in COLLECTIVE}) >= 5


def test_every_table_cites_and_says_what_it_is():
    for table in TABLES.values():
        source = table["source"]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", source["commit"])
        assert source["url"] == f"https://github.com/{source['repository']}/blob/{source['commit']}/{source['path']}"
        assert all(len(table[name]) > 5 for name in ("name", "hardware", "measured"))
        # Each rate that is given says where it is from.
        rates = [name for name in table["inputs"] if name.endswith("per_s")]
        assert "node_gbit_per_s" in rates
        for name in rates:
            assert len(table["inputs"][f"{name}_from"]) > 5
            assert table["inputs"][name] is None or table["inputs"][name] > 0


def test_scales_grow():
    for key, table in TABLES.items():
        rows = table["rows"]
        assert all(0 < a["ranks"] < b["ranks"] and a["nodes"] <= b["nodes"] for a, b in pairwise(rows)), key
        assert all(row["ranks"] % row["nodes"] == 0 for row in rows), key


def test_sizes_grow_and_times_are_times():
    for key in COLLECTIVE:
        for row in TABLES[key]["rows"]:
            assert row["ranks"] >= 2
            assert len(row["bytes"]) == len(row["us"]) >= 3
            assert all(0 < a < b for a, b in pairwise(row["bytes"])), key
            assert all(us > 0 for us in row["us"]), key
            # Microseconds and bytes: no cluster has a bus faster than 1.5 TB/s, or slower than 1 MB/s from 1 MiB up.
            for nbytes, us in zip(row["bytes"], row["us"], strict=True):
                rate = 2 * (row["ranks"] - 1) / row["ranks"] * nbytes / us * 1e6
                assert rate < 1.5e12, key
                assert rate > 1e6 or nbytes < 2**20, key


def test_training_rows_are_complete():
    for key in TRAINING:
        given, rows = TABLES[key]["inputs"], TABLES[key]["rows"]
        for name in ("parameters", "gradient_bytes_per_parameter", "ranks_per_node", "samples_per_micro_batch"):
            assert given[name] > 0
        assert given["parameters_from"]
        assert given["buckets"]
        assert len(rows) >= 3
        for row in rows:
            efficiency = row["samples_per_s"] / row["ranks"] / (rows[0]["samples_per_s"] / rows[0]["ranks"])
            assert 0.3 < efficiency < 1.05, key
            assert row["ranks"] <= row["nodes"] * given["ranks_per_node"], key


def test_parameters_are_those_of_the_models():
    """Of the models whose definition is one formula, count again."""
    vocabulary, width = 30528, 1024
    layer = 12 * width**2 + 13 * width
    heads = width**2 + width + (width**2 + width + 2 * width + vocabulary) + 2 * width + 2
    bert = (vocabulary + 512 + 2) * width + 2 * width + 24 * layer + heads
    assert {TABLES[key]["inputs"]["parameters"] for key in TRAINING if "bert" in key} == {bert}


def run_lab(name, folder, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    evidence.begin(folder / "evidence.json")
    try:
        runpy.run_path(str(LABS / name))
    finally:
        kept = evidence.end()
    return {key: value["value"] for key, value in kept["values"].items()}


def test_all_reduces_are_predicted_as_the_page_says(tmp_path, monkeypatch):
    """The same in every edition: nothing here is measured on this machine."""
    seen = run_lab("plot_22_published_tables.py", tmp_path, monkeypatch)
    assert seen["sizes_lines_median"] < 8
    assert seen["sizes_lines_mean"] < 15 < seen["sizes_line_mean"] < 35
    assert seen["scales_lines_mean"] < 25 < seen["scales_line_mean"] < 50
    assert seen["near"] >= 15


def test_training_is_predicted_as_the_page_says(tmp_path, monkeypatch):
    seen = run_lab("plot_23_published_training.py", tmp_path, monkeypatch)
    assert seen["given_median"] < 5
    assert seen["fitted_median"] < 2
    assert seen["fitted_mean"] < 5 < seen["given_mean"] < 10
    assert seen["fitted_worst"] < 30 < seen["given_worst"]
