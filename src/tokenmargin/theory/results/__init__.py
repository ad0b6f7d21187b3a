"""Results of our own on the two papers' questions: each with a proof in `docs/results`, and a claim that tests it."""

from tokenmargin.theory.results import constants, first_step, joint_phase, sublevel

CLAIMS = (*constants.CLAIMS, *joint_phase.CLAIMS, *first_step.CLAIMS, *sublevel.CLAIMS)
