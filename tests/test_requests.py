"""Which token ids are let in; test_request_errors.py sends them to a server."""

from __future__ import annotations

import pytest

from descant.sglang_ext.requests import check_ids


@pytest.mark.parametrize("ids", [[0], [0, 9, 9], (3, 4), []])
def test_ids_of_the_vocabulary_pass(ids: object) -> None:
    check_ids(ids, vocab_size=10)


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([1, 10], "Token id 10 is not in the model's vocabulary (0 to 9)."),
        ([1, -1, 99], "Token id -1 is not in the model's vocabulary (0 to 9)."),
        ([1, "2"], "input_ids must be a list of token ids, whole numbers, not [1, '2']."),
        ([1, 2.0], "input_ids must be a list of token ids, whole numbers, not [1, 2.0]."),
        ([True], "input_ids must be a list of token ids, whole numbers, not [True]."),
        ("1 2", "input_ids must be a list of token ids, whole numbers, not '1 2'."),
        (7, "input_ids must be a list of token ids, whole numbers, not 7."),
    ],
)
def test_others_are_refused_in_one_sentence(ids: object, says: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the whole message is compared)
        check_ids(ids, vocab_size=10)
    assert str(refused.value) == says
