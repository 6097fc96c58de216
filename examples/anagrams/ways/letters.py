"""Words that are anagrams of each other."""


def groups(words):
    """Each group of two or more, in the order of their first words. Anagrams have the same letters."""
    found = {}
    for word in words:
        found.setdefault(frozenset(word), []).append(word)
    return [group for group in found.values() if len(group) > 1]
