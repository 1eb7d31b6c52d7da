"""Run specs, records, clock, schedules and score: no Ray, no framework."""
