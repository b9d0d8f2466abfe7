"""Live depth inside the engine core: the scheduler that cuts drafts, its table, sums over steps, calibration."""
