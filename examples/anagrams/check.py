"""The tests of `groups`, and then a long list of words for it."""

import random
import sys
import unittest

from groups import groups


class GroupsTest(unittest.TestCase):
    def test_anagrams_are_found(self):
        assert groups(["listen", "stone", "silent", "notes"]) == [["listen", "silent"], ["stone", "notes"]]

    def test_a_word_alone_is_no_group(self):
        assert groups(["listen", "stone"]) == []

    def test_letters_count_as_often_as_they_are_there(self):
        assert groups(["aab", "abb", "aba"]) == [["aab", "aba"]]


def words(number):
    """The same ones each time."""
    chance = random.Random(1)
    return ["".join(chance.choices("aeinorst", k=12)) for _ in range(number)]


if __name__ == "__main__":
    if not unittest.main(exit=False, verbosity=0).result.wasSuccessful():
        sys.exit(1)
    several = [words(10_000)] * 8
    print(sum(len(groups(one)) for one in several), "groups")
