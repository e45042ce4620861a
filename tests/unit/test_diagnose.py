"""From shares of the time to a word: made cases whose answer a person knows."""

import random

import pytest

from amp_sweep.diagnose import DOMINANT, SHARES, WORDS, diagnose, figures, shares


def case(**known: float | None) -> dict[str, float | None]:
    return {**dict.fromkeys(SHARES, 0.0), **known}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (case(input=0.8, gaps=0.1, compute=0.1), "input-bound"),
        (case(gaps=0.7, compute=0.2, memory=0.1), "launch-bound"),
        (case(compute=0.65, memory=0.3, gaps=0.05), "compute-bound"),
        (case(memory=0.55, compute=0.4, gaps=0.05), "memory-bound"),
        (case(communication=0.6, compute=0.4), "communication-bound"),
        # Below half, but far ahead of the rest.
        (case(compute=0.45, memory=0.25, gaps=0.2, input=0.1), "compute-bound"),
        # Ahead, but not far.
        (case(compute=0.4, memory=0.35, gaps=0.25), "mixed"),
        # Far ahead of the rest, but not much of the time.
        (case(compute=0.3, memory=0.18, gaps=0.17, input=0.175, communication=0.175), "mixed"),
    ],
)
def test_the_word_for_a_made_case(found: dict[str, float | None], word: str) -> None:
    assert diagnose(found).word == word


def test_half_of_the_time_is_enough_and_a_little_less_is_not() -> None:
    rest = 1 - DOMINANT
    assert diagnose(case(compute=DOMINANT, memory=rest)).word == "compute-bound"
    less = DOMINANT - 0.01
    assert diagnose(case(compute=less, memory=1 - less)).word == "memory-bound"
    assert diagnose(case(compute=less, memory=less, gaps=0.02)).word == "mixed"


def test_the_evidence_of_an_input_bound_run_says_what_to_try() -> None:
    found = diagnose(case(input=0.8, compute=0.2), placement="pil")
    assert found.evidence == (
        "waits 80% of the time for its input: AMP cannot help; try data.pipeline=resident"
    )
    loader = diagnose(case(input=0.8, compute=0.2), placement="workers")
    assert "data.workers" in loader.evidence
    host = diagnose(case(input=0.8, compute=0.2), placement="host")
    assert "data.placement=device" in host.evidence


def test_a_long_wait_needs_no_other_figure() -> None:
    found = diagnose({"input": DOMINANT})
    assert found.word == "input-bound"


@pytest.mark.parametrize("missing", SHARES)
def test_without_a_figure_the_answer_is_undetermined_and_names_it(missing: str) -> None:
    found = diagnose({**case(compute=0.4), missing: None}, reason="the probes are off")
    assert found.word == "undetermined"
    assert missing in found.evidence and "the probes are off" in found.evidence


def test_every_word_has_evidence_with_its_share() -> None:
    for name, word in WORDS.items():
        found = diagnose(case(**{name: 0.91, "gaps" if name != "gaps" else "memory": 0.09}))
        assert found.word == word
        assert "91%" in found.evidence


def test_the_evidence_says_how_near_the_ceiling_a_computing_run_is() -> None:
    computing = case(compute=0.9, memory=0.1)
    found = diagnose(computing, device_type="cuda", mfu=0.34, autocast=False)
    assert "34%" in found.evidence and "lower precision" in found.evidence
    half = diagnose(computing, device_type="cuda", autocast=True)
    assert "lower precision" not in half.evidence
    # bfloat16 on a CPU is slower there as often as it is faster.
    assert "lower precision" not in diagnose(computing, device_type="cpu").evidence


def test_the_advice_against_gaps_is_what_is_not_used_yet() -> None:
    idle = case(gaps=0.7, compute=0.3)
    assert "memory=fast" in diagnose(idle, device_type="cuda").evidence
    assert "memory=fast" not in diagnose(idle, device_type="cuda", in_graph=True).evidence
    assert "parallel=ddp" in diagnose(idle, device_type="cuda", parallel="dp", replicas=2).evidence
    assert "ddp" not in diagnose(idle, device_type="cuda", parallel="dp", replicas=1).evidence
    assert "Python" in diagnose(idle, device_type="cpu").evidence


def test_where_nothing_dominates_the_shares_that_are_worth_naming_are_told() -> None:
    found = diagnose(case(compute=0.4, memory=0.35, gaps=0.21, input=0.04))
    assert found.evidence == ("nothing dominates the time: compute 40%, memory 35%, gaps 21%")


def test_what_a_record_says_of_the_run_reaches_the_diagnosis() -> None:
    effective = {
        "parallel": "dp",
        "device_type": "cuda",
        "world_size": 1,
        "replicas": 4,
        "backend": None,
        "autocast_dtype": "float16",
        "cuda_graph": True,
        "data_placement": "workers",
    }
    assert figures(effective) == {
        "parallel": "dp",
        "device_type": "cuda",
        "replicas": 4,
        "backend": "",
        "autocast": True,
        "in_graph": True,
        "placement": "workers",
    }
    plain = figures({**effective, "autocast_dtype": None, "cuda_graph": False})
    assert not plain["autocast"] and not plain["in_graph"]


def test_communication_names_the_backend_and_the_devices() -> None:
    found = diagnose(case(communication=0.7, compute=0.3), backend="gloo", replicas=2)
    assert "by gloo between 2 devices" in found.evidence


# ------------------------------------------------------------------ shares


def test_shares_of_a_made_step() -> None:
    found = shares(0.010, 0.1, compute_s=0.004, memory_s=0.002, communication_s=0.001)
    assert found == pytest.approx(
        {"input": 0.1, "gaps": 0.2, "compute": 0.4, "memory": 0.2, "communication": 0.1}
    )


@pytest.mark.parametrize("seed", range(50))
def test_shares_add_up_to_one(seed: int) -> None:
    draw = random.Random(seed)
    parts = [draw.random() * 0.005 for _ in range(3)]
    found = shares(
        0.008, draw.random(), compute_s=parts[0], memory_s=parts[1], communication_s=parts[2]
    )
    if found is not None:
        assert sum(found.values()) == pytest.approx(1)
        assert min(found.values()) >= 0 and set(found) == set(SHARES)


def test_a_little_more_work_than_time_is_scaled_to_fit() -> None:
    found = shares(0.010, 0.5, compute_s=0.004, memory_s=0.002, communication_s=0.0)
    assert found == pytest.approx(
        {"input": 0.5, "gaps": 0.0, "compute": 1 / 3, "memory": 1 / 6, "communication": 0.0}
    )
    # What a long wait leaves is short, and an error of a tenth of the step is nothing unusual.
    found = shares(0.010, 0.95, compute_s=0.0012, memory_s=0.0, communication_s=0.0)
    assert found is not None and found["compute"] == pytest.approx(0.05)


def test_much_more_work_than_time_tells_nothing() -> None:
    assert shares(0.010, 0.0, compute_s=0.02, memory_s=0.0, communication_s=0.0) is None
    assert shares(0.0, 0.0, compute_s=0.02, memory_s=0.0, communication_s=0.0) is None
