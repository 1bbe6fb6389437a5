"""Pictures: the chart of a run, plots, and the primitives that every picture of the project is drawn with.

A picture is one SVG that needs nothing from anywhere: no fonts, scripts or links. It is light or dark as its reader asks.
"""
