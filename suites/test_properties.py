"""Every implementation obeys the relations that hold for any recurrent layer: on drawn cases, and on those given by name."""

from __future__ import annotations

from pytest_ecornn.run.items.drawn_items import PropertyItem


def test_properties(ecornn_properties: PropertyItem) -> None:
    """Causality, two parts equal one whole, nothing changed that is not the call's own, and the like: see `properties`."""
    ecornn_properties.run()
