"""The arithmetic of the data: grid, sample order, ledger, audit."""
