"""Run records and statistics: ledger, records, replicates, curve model, sequential test."""
