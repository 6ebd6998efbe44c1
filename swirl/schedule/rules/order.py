"""The default schedule: its rules, in their order.

A phase passes through the stages of :data:`PHASE` one after the other; the last one has each nest pass through the
rules of :data:`NEST`. A rule looks at loops, subscripts, strides and layouts. It tries commands; one that is refused
gives way to the next candidate. What is applied is a recipe, which ``explain`` and ``latte show --recipe`` print.

A rule's function has a docstring with a loop nest before and after, and the reason in terms of the hardware.
"""

from __future__ import annotations

from swirl.schedule.rules.blocking import order_products
from swirl.schedule.rules.clipped_sums import keep_sums, sum_inside
from swirl.schedule.rules.digits import keep_digits
from swirl.schedule.rules.engine import Rule, Scope, Then, by_itself, stage
from swirl.schedule.rules.few_sums import add_up_together
from swirl.schedule.rules.flattening import flatten
from swirl.schedule.rules.gathering import gather
from swirl.schedule.rules.joining import join
from swirl.schedule.rules.lanes import vectorize
from swirl.schedule.rules.layouts import block_results, follow_blocks
from swirl.schedule.rules.long_rows import share_rows
from swirl.schedule.rules.neighbours import gather_neighbours
from swirl.schedule.rules.one_hot_sums import go_to_places
from swirl.schedule.rules.packing import join_rows, pack, transpose_operands
from swirl.schedule.rules.panels import pack_panels
from swirl.schedule.rules.parting import cut, store_products
from swirl.schedule.rules.prefetch_and_stream import fetch_results, fetch_rows, fetch_strided, store_far
from swirl.schedule.rules.ranges import cut_clamped_ends, cut_quotients
from swirl.schedule.rules.rows import results_outside
from swirl.schedule.rules.temporaries import contract_temporaries
from swirl.schedule.rules.threads import add_up_in_parts, share

JOIN = Rule("join", join, "a loop that sets what the next one adds to is one with it")
TURN = Rule("turn", transpose_operands, "an operand of a product is copied, for lanes along results", Then.NEXT_NEST)

NEST = (
    Rule("row", share_rows, "long rows: threads share pieces, lanes run along them", Then.LAST_RULE, vectors=True),
    Rule("parts", add_up_in_parts, "parts of a sum that all iterations add to have sums of their own"),
    Rule("panels", pack_panels, "panels of an operand of a product are copied", vectors=True),
    Rule("sum_inside", sum_inside, "short loops over terms go inside where borders clip them"),
    Rule("keep_sums", keep_sums, "sums that borders clip are kept in registers"),
    Rule("pack", pack, "operands whose rows are far apart, or are columns, are copied", vectors=True),
    Rule("lanes", vectorize, "loops become lanes; copies of others make register tiles", vectors=True),
    Rule("threads", share, "threads share the outermost independent loops"),
    Rule("fetch_rows", fetch_rows, "pieces of rows that are pages apart are fetched before they are read"),
    Rule("fetch_results", fetch_results, "such pieces are fetched before they are added to"),
    Rule("fetch_strided", fetch_strided, "rows of which lanes take some elements are fetched before"),
    Rule("stream", store_far, "results larger than the caches are stored past them"),
)
"""The rules of one nest."""

PHASE = (
    stage(Scope.NESTS, Rule("digits", keep_digits, "means that data are centred by are exact for equal numbers")),
    stage(
        Scope.PHASE,
        Rule("follow_blocks", follow_blocks, "arrays get the blocks of those that they are used with"),
        Rule("block_results", block_results, "results with short rows get blocks that fill a vector"),
    ),
    stage(Scope.NEW_NESTS, Rule("store_products", store_products, "locals of products become arrays")),
    stage(
        Scope.NESTS,
        Rule("quotients", cut_quotients, "loops with quotients in subscripts are cut to whole steps"),
        Rule("places", go_to_places, "a loop of which data choose one iteration becomes that iteration"),
        Rule("ends", cut_clamped_ends, "ends of loops that alone are clamped become loops of their own"),
        Rule("neighbours", gather_neighbours, "several statements that add to neighbours become one sum"),
        Rule("gather", gather, "sums that are scattered become loops over the elements that they add to"),
    ),
    stage(
        Scope.PHASE,
        JOIN,
        Rule("flatten", flatten, "loops over contiguous memory become one"),
        Rule("temporaries", contract_temporaries, "temporaries that are read where they are made become locals"),
    ),
    stage(
        Scope.NEW_NESTS,
        TURN,  # before loops are cut: the copy is then before what the sums begin with, too
        Rule("rows", results_outside, "loops over results go outside of rows along the terms", Then.NEXT_NEST),
        Rule("cut", cut, "each product, and each sum with loops of its own, has a nest of its own"),
        Rule("join_rows", join_rows, "loops along which the same operands move become one"),
        TURN,
        Rule("blocks", order_products, "loops of products get an order, and blocks, for the caches"),
    ),
    stage(Scope.PHASE, JOIN),
    stage(
        Scope.NEW_NESTS,
        Rule("few_sums", add_up_together, "few sums over much data stay in registers", Then.NEXT_OLD_NEST),
        Rule("nest", by_itself(NEST), "the rules of a nest, above"),
    ),
)
"""The rules of a phase."""
