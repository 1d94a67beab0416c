"""Fitnesses that need no model: a made-up worth of every genome, in batches, with all shortcuts."""

import math


class Judge:
    """Worth of genomes as the mean of batches; counts the layers that it would have to run.

    It keeps states as an evaluator does: those of what it judged since the last ``retain``, and of
    what was to be retained. ``digits`` makes ties.
    """

    def __init__(self, layers, *, batches=20, digits=3, shortcuts=True):
        self.layers, self.batches, self.digits, self.shortcuts = layers, batches, digits, shortcuts
        self.layer_forwards = self.layer_forwards_naive = 0
        self.asked = []
        self.states = set()

    def part(self, counts, batch):
        cost = sum(
            (1 + (row * 7 + batch * 3) % 5) * count**1.5 * (1 + (row + 2 * batch) % 3)
            for row, count in enumerate(counts)
        )
        return round(math.exp(-cost / (400 * len(counts))), self.digits)

    def value(self, counts):
        return sum(self.part(counts, batch) for batch in range(self.batches)) / self.batches

    def score(self, counts, *, parent=None, at_least=-math.inf):
        self.asked.append((counts, parent, at_least))
        self.layer_forwards_naive += self.layers * self.batches
        if not self.shortcuts:
            self.layer_forwards += self.layers * self.batches
            return self.value(counts)
        shared = 0
        while parent is not None and shared < self.layers and counts[shared] == parent[shared]:
            shared += 1
        if parent is not None:
            assert parent in self.states
        known = 0.0
        for batch in range(self.batches):
            if (known + self.batches - batch) / self.batches < at_least - 1e-9:
                return None
            known += self.part(counts, batch)
            self.layer_forwards += self.layers - shared
        self.states.add(counts)
        return self.value(counts)

    def retain(self, counts):
        self.states &= set(counts)
