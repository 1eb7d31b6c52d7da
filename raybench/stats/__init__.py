"""What runs leave behind, and the statistics over it: clock, records, replicates."""
