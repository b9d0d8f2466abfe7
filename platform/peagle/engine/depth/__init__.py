"""Live depth inside the engine core: the scheduler that cuts drafts, its depth table, step sums and calibration."""
