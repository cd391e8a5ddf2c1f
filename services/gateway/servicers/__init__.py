"""The gRPC servicers: thin translations between calls and the core. They decide nothing and hold no state."""
