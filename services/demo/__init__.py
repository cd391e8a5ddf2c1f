"""`tidemilld demo`: the main job, for people to watch: a training job survives its node and its leader."""
