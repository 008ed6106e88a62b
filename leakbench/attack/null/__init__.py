"""The baseline guess: the best guess from public data alone, without any gradient (in statistics: the null)."""
