"""A whole cell on real Kafka and etcd, while parts of it, or of them, are killed, frozen or cut off."""
