"""The distributed stack: versions, broker and etcd configuration, local launcher, images.

It knows Kafka and etcd and never a Tidemill service's code; nothing of it is installed with one.
"""
