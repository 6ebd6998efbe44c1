"""Schemes as text, and the rules that they obey (thesis, sections 3.2 to 3.7)."""

from __future__ import annotations

import pytest

from swirl.errors import CommandError
from swirl.tune.ttile.schemes import (
    ExternalCall,
    LambdaSeq,
    Pack,
    PackT,
    R,
    ScalP,
    Scheme,
    T,
    Texct,
    Texctg,
    Tfused,
    Tpar,
    Tvar,
    U,
    ULambda,
    V,
    parse_scheme,
)

EVERY_ATOM = Scheme(
    (
        R("j_0"),
        Tfused((("n", 2), ("k", 4))),
        Tpar(3, "x"),
        LambdaSeq("i", ((12, 6), (8, 7))),
        Texct(120, "y"),
        Texctg(40, "y"),
        Tvar(8, "y"),
        ScalP(("c", "ky")),
        Pack("A_1"),
        PackT("B", ("k", "c")),
        T(32, "c"),
        ULambda("i"),
        U(2, "x"),
        V("k"),
    )
)
EXTENTS = {"i": 12, "j": 64, "k": 30}
LANES = 8


@pytest.mark.parametrize(
    "scheme", [EVERY_ATOM, Scheme((R("k"), ExternalCall(12, "i", "i12_j2")))], ids=["atoms", "call"]
)
def test_a_scheme_is_read_as_it_is_printed(scheme: Scheme) -> None:
    assert parse_scheme(str(scheme)) == scheme
    assert scheme.ascii.isascii()
    assert parse_scheme(scheme.ascii) == scheme


def test_other_spellings_of_the_thesis() -> None:
    assert parse_scheme("[λseq_i[(2,11);(3,7)]; Textg_4_k ; Pack_B[k, j];Uλ_i]") == Scheme(
        (LambdaSeq("i", ((2, 11), (3, 7))), Texctg(4, "k"), PackT("B", ("k", "j")), ULambda("i"))
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("R_i, R_j", "is not a scheme"),
        ("[]", "at least one atom"),
        ("[R_i, W_4_j]", "'W_4_j' is not an atom"),
        ("[T_i]", "'T_i' is not an atom"),
        ("[R_4_i]", "'R_4_i' is not an atom"),
        ("[T_0_i]", "has 0 iterations"),
        ("[λ_i[(2, 11)], Uλ_i]", "has one part"),
        ("[λ_i[2, 11], Uλ_i]", "is not an atom"),
        ("[ExternalCall_12_i[fast]]", "'fast' is not a micro-kernel"),
    ],
)
def test_what_is_not_a_scheme_is_told(text: str, told: str) -> None:
    with pytest.raises(CommandError) as error:
        parse_scheme(text)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[R_i, R_j, R_q, R_k]", "there is no dimension 'q'"),
        ("[R_i, R_i, R_j, R_k]", "R_i is inside of R_i, and is the outermost atom of its dimension, once"),
        ("[T_2_i, R_i, R_j, R_k]", "R_i is inside of T_2_i"),
        ("[R_i, R_j]", "its atoms along k cover 1, of 30"),
        ("[T_3_i, R_j, R_k, U_2_i]", "its atoms along i cover 6, of 12"),
        ("[R_i, R_j, R_k, T_4_k]", "30 along k is not a multiple of 4"),
        ("[R_i, R_k, T_4_j, V_j]", "its atoms along j cover 32, of 64"),
        ("[R_i, R_j, R_k, V_k]", "30 along k is not a multiple of 8"),
        ("[R_i, V_j, R_j, R_k]", "V_j must be the last atom"),
        ("[R_i, U_2_i, R_j, R_k]", "R_j is inside of U_2_i"),
        ("[R_j, R_k, Uλ_i]", "λ_i needs one Uλ_i inside of it"),
        ("[λ_i[(1, 5), (1, 7)], R_j, R_k]", "Uλ_i one λ_i around it"),
        ("[λ_i[(1, 5), (1, 6)], R_j, R_k, Uλ_i]", "its atoms along i cover 11, of 12"),
        ("[Texct_12_i, R_j, R_k, T_2_i]", "the next atom along i inside of Texct_12_i is T_2_i"),
        ("[R_j, R_k, R_i, Tvar_4_i]", "the next atom along i around Tvar_4_i is R_i"),
        ("[R_j, R_k, Texct_12_i, Tvar_5_i, U_2_i]", "Tvar_5_i is not a multiple of 2"),
        ("[R_j, R_k, ExternalCall_12_i[i6_j2]]", "i6_j2 covers at the most 6 along i, not 12"),
        ("[R_j, R_k, ExternalCall_16_j[i6_j2]]", "i6_j2 is not flexible along j"),
    ],
)
def test_rules_are_checked(text: str, told: str) -> None:
    with pytest.raises(CommandError) as error:
        parse_scheme(text).levels(EXTENTS, LANES)
    assert told in str(error.value)


def test_partial_tiles_are_multiples_of_what_is_inside() -> None:
    """The two examples of section 3.5."""
    extents = {"i": 34}
    with pytest.raises(CommandError, match="13"):
        parse_scheme("[Texct_34_i, Tvar_13_i, T_2_i, U_3_i]").levels(extents, LANES)
    extents = {"i": 48}
    found = parse_scheme("[Texct_48_i, Tvar_18_i, T_2_i, U_3_i]").levels(extents, LANES)
    assert [level.size for level in found["i"]] == [(48,), (18,), (6,), (3,)]
    assert [level.inner for level in found["i"]] == [(18,), (6,), (3,), (1,)]


def test_levels_of_a_combination() -> None:
    found = parse_scheme("[λ_i[(2, 11), (3, 7)], R_j, T_2_i, R_k, Uλ_i]").levels({"i": 86, "j": 2, "k": 3}, LANES)
    assert [level.size for level in found["i"]] == [(86,), (22, 14), (11, 7)]
