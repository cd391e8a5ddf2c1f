"""`tidemilld up`: a whole cell on one machine, run and supervised by one command."""
