"""What every package uses: types, errors, recipes and parts, random generators, the request, progress."""
