"""Methods: each turns what leaked into pictures or records; `autoleak` is the worst case over several."""
