"""What a quiet and a busy machine say of themselves."""

from pytest_ecornn.results.rows import Disturbance

QUIET = Disturbance(1.0, 2, 0.01, 0.0, 0.0, 0.0, 0.0, 20, 1)
BUSY = Disturbance(1.0, 2, 1.0, 0.0, 0.0, 0.0, 0.0, 20, 15)
