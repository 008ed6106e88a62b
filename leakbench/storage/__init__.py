"""Files of runs: folders, manifests, rows, locks and atomic writes."""
