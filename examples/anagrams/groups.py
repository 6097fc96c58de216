"""Words that are anagrams of each other."""


def groups(words):
    """Each group of two or more, in the order of their first words. Every word is compared with every group."""
    found = []
    for word in words:
        for group in found:
            if sorted(group[0]) == sorted(word):
                group.append(word)
                break
        else:
            found.append([word])
    return [group for group in found if len(group) > 1]
