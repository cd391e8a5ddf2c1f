"""Straight to the topics of a cell, where its operator allows that: `pip install tidemill[kafka]`.

`records` makes and proves the records and needs no Kafka client; `producer` sends them with confluent-kafka. How to, and
what an operator sets: docs/how-to/outside-producers.md.
"""

from tidemill.kafka.producer import OutsideProducer
from tidemill.kafka.records import progress_record, submission_record

__all__ = ["OutsideProducer", "progress_record", "submission_record"]
