"""What every company document also says: paragraphs without rules, numbers or ids, so that long documents read like a company's.

They carry no digits, hence nothing that a rule's literals could be mistaken for.
"""

from __future__ import annotations

from random import Random

__all__ = ["PARAGRAPHS", "chapter", "paragraphs"]

PARAGRAPHS = (
    (
        "Purpose. This document describes how the work is done today. It is written for the people who do it and for those who check "
        "it later. Where it is silent, the reader asks the owner before acting and not afterwards, because most corrections cost more "
        "than a question."
    ),
    (
        "Scope. The text applies to all teams that use the shared systems, on every site and in every shift. Contractors who work "
        "under our direction follow it as well. Work that is done for a client under the client's own procedure is outside its scope."
    ),
    (
        "Owner. The owner keeps the text up to date, answers questions about it and decides in cases of doubt. Changes are proposed in "
        "writing, with a reason and an example, and are collected until the next revision. Urgent changes are announced by message."
    ),
    (
        "Records. What was done, by whom and on what ground is kept in the system in which it was done. Notes on paper are copied the "
        "same day. A record is never overwritten; a correction is a second record that points to the first one and says what was wrong "
        "with it."
    ),
    (
        "Access. Rights are given for a task and taken back when the task ends. Nobody shares an account, not even for a moment. "
        "Whoever finds that a right goes further than the task reports it and does not use it."
    ),
    (
        "Training. New colleagues work beside an experienced one until both agree that it is no longer needed. The experienced "
        "colleague signs for it. A short refresher follows after every revision that changes more than wording."
    ),
    (
        "Language. Messages are short and complete: what was seen, what was done, what is open. Abbreviations are spelled out when the "
        "reader may come from another team. Irony is left out, because it does not survive translation."
    ),
    (
        "Hand-over. At the end of a shift the open points are handed over in person or by message, each with its state. What is not "
        "handed over counts as not done. The next shift confirms what it has understood, in its own words."
    ),
    (
        "Tools. Only the tools that are listed in the catalogue may be used. Private copies of data on laptops or sticks are not "
        "allowed, even if they would be quicker. A tool that fails is reported to the service desk, with the text of the message that "
        "it showed."
    ),
    (
        "Review. The text is reviewed every year and after each incident in which it played a part. The review asks what was unclear, "
        "what was ignored and why. Its result is kept with the document and shown to anybody who asks."
    ),
    (
        "Exceptions. An exception is agreed before it is used, has an end and names the person who answers for it. Exceptions that "
        "nobody needs any more are closed. A rule with many exceptions is rewritten."
    ),
    (
        "Quality. Samples are taken at random and checked by somebody who was not involved. Findings are discussed with the people who "
        "did the work, first in private. The aim is a better procedure, not a culprit."
    ),
    (
        "Data protection. Personal data are used for the purpose for which they were collected and for nothing else. They are removed "
        "when the purpose is gone. Questions go to the data protection officer, who also keeps the register."
    ),
    (
        "Security. Doors and screens are locked when nobody is there. Visitors are accompanied. Messages that ask for passwords are "
        "reported and never answered, also when they seem to come from a manager."
    ),
    (
        "Suppliers. Suppliers are told what we expect, in writing, and are measured against it. Their people are treated like ours. "
        "Contracts are kept by purchasing; nobody else promises anything to a supplier."
    ),
    (
        "Communication. The team that finds a problem tells the teams that depend on it, before it is solved and again when it is "
        "solved. Customers are informed by their contact persons, in agreed words."
    ),
    (
        "Continuity. For the case that a system is down there is a written fallback, which is tried out regularly. The fallback is "
        "slower and that is accepted. What was noted by hand is entered as soon as the system is back."
    ),
    (
        "Environment. Equipment is switched off when it is not needed, unless the operating notes say otherwise. Packaging is "
        "returned. Waste is separated by kind and collected at the marked places."
    ),
    (
        "Safety. Work stops when somebody may get hurt. Nobody needs permission to stop it. It goes on when the cause has been removed "
        "and the person who stopped it agrees."
    ),
    (
        "History. The text replaces several shorter ones that had grown apart over the years. Their wording was kept where it had "
        "proved itself. Readers who remember the old texts should read this one again from the start."
    ),
    (
        "Definitions. Words are used as in the glossary. Where this text gives a word a narrower meaning it says so at the first "
        "place. A day is a calendar day, and a working day is a day on which the office is open."
    ),
    (
        "Responsibilities. Team leads see to it that the work is done and that it can be done. Colleagues see to it that it is done "
        "well. Both say early when one of the two is not possible. Blame is not a method."
    ),
    (
        "Escalation paths. Questions are asked where they arise. If there is no answer within a reasonable time the next level is "
        "asked, with a copy to the first one. Skipping a level is allowed when there is danger."
    ),
    (
        "Meetings. A meeting has a purpose, an end and notes. Whoever has nothing to contribute may leave without giving a reason. "
        "Decisions that were not written down were not taken."
    ),
    (
        "Archive. Documents that are out of force stay readable, because older work can be understood only with the text that applied "
        "to it. They are marked, and they must not be used for new work, however familiar they are."
    ),
    (
        "Feedback. Suggestions are welcome from everybody and are answered within a reasonable time, also when the answer is no. The "
        "best ones came from people who had been with us for a few weeks only."
    ),
)
"""Paragraphs, each of two to four sentences."""


def paragraphs(random: Random, count: int) -> list[str]:
    """`count` different paragraphs, or all of them."""
    return random.sample(PARAGRAPHS, min(count, len(PARAGRAPHS)))


def chapter(random: Random, text: str, *, count: int) -> str:
    """`text` as one paragraph among `count` others: some before it, some behind it."""
    others = paragraphs(random, count)
    place = random.randint(0, len(others))
    return "\n\n".join([*others[:place], text, *others[place:]])
