"""The generated messages and gRPC stubs of protos/tidemill/v1; `make proto` writes them, nobody edits them."""
