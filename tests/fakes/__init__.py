"""Small fakes of the ports, held to the same contract suites as the adapters they stand for."""
