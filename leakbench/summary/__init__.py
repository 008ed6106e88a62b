"""What a run found: each leakage point beside its limits, as one object; and two runs beside each other."""
