"""Found by PySpark through its name: `format("anabranch")` needs no registration where this is installed."""
