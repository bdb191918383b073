"""Many runs from one job file. One run's submission never imports it."""
