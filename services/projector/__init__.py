"""The projector: flattens the accepted entries of the log into one record a fact, for tools that know no chain."""
