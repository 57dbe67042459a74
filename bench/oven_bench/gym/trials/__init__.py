"""What a trial is worth to a run of the gym's: bits, intervals, charges, copies, and how long a look it needs."""
