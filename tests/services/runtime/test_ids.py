"""Ids are the same at every retry and on every machine, and can be told from numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime import ids
from statemachines.values import JobId
from tidemill.v1 import requests_pb2


def test_a_job_id_never_changes_between_versions() -> None:
    assert ids.job_id(principal="user:alice", request="r1") == "e63m22ssv3zc"


@given(principal=st.text(max_size=20), request=st.text(max_size=20))
def test_a_job_id_is_short_lower_case_and_starts_with_a_letter(
    principal: str, request: str
) -> None:
    job = ids.job_id(principal=principal, request=request)
    assert len(job) == 12
    assert job == job.lower()
    assert job.isalnum()
    assert job[0].isalpha()
    assert job == ids.job_id(principal=principal, request=request)


def test_principal_and_request_cannot_be_shifted_into_each_other() -> None:
    assert ids.job_id(principal="a", request="bc") != ids.job_id(principal="ab", request="c")


def test_a_run_id_can_be_taken_apart_even_for_an_array_element() -> None:
    run = ids.run_id(ids.array_element(JobId("abc"), 4), 2, 7)
    assert run == "abc_4.2.7"
    assert ids.parse_run_id(run) == ("abc_4", 2, 7)
    assert (ids.array_of("abc_4"), ids.array_of("abc")) == ("abc", "")


@pytest.mark.parametrize("run", ["", "abc", "abc.1", ".1.2", "abc.x.1"])
def test_what_is_no_run_id_is_said_to_be_none(run: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ids.parse_run_id(run)


def test_another_kind_of_the_same_bytes_has_another_digest() -> None:
    hold, cancel = requests_pb2.HoldJob(job="a"), requests_pb2.CancelJob(job="a")
    assert hold.SerializeToString() == cancel.SerializeToString()
    assert ids.request_digest(hold) != ids.request_digest(cancel)


def test_other_content_under_one_key_has_another_digest_and_a_key_of_its_own() -> None:
    first = ids.request_digest(requests_pb2.CancelJob(job="a"))
    other = ids.request_digest(requests_pb2.CancelJob(job="b"))
    assert first != other
    assert first == ids.request_digest(requests_pb2.CancelJob(job="a"))
    key = ids.request_key(client="user:a", request="7")
    assert ids.reused_key(key, other) == f"user:a/7#{other.hex()[:8]}"
