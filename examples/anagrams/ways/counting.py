"""Words that are anagrams of each other."""


def groups(words):
    """Each group of two or more, in the order of their first words. Anagrams have as many of each letter."""
    found = {}
    for word in words:
        found.setdefault(frozenset((letter, word.count(letter)) for letter in word), []).append(word)
    return [group for group in found.values() if len(group) > 1]
