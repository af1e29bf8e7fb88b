//! The race records of global memory. Any of it may be written, so they are kept by address, for one interval between
//! block barriers: a barrier precedes everything after it, and empties the table at no cost.
use super::record::Record;

/// Words of an aligned run that stay together in the table, since threads mostly touch neighbours.
const RUN: usize = 16;

/// A hash table by word address, with linear probing.
#[derive(Debug)]
pub(super) struct History {
    entries: Vec<Entry>,
    /// Entries of another generation are empty. Starts at 1.
    generation: u32,
    live: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    word: usize,
    record: Record,
    generation: u32,
}

impl History {
    pub fn new() -> Self {
        Self { entries: vec![Entry::default(); 1 << 10], generation: 1, live: 0 }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.live = 0;
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.entries.fill(Entry::default());
            1
        });
    }

    /// The record of the word at `4 * word`.
    #[inline]
    pub fn record(&mut self, word: usize) -> &mut Record {
        let mut index = self.index_of(word);
        if self.entries[index].generation != self.generation {
            // Half stays free, so that probes are short.
            if self.live >= self.entries.len() / 2 {
                self.grow();
                index = self.index_of(word);
            }
            self.live += 1;
            self.entries[index] = Entry { word, record: Record::default(), generation: self.generation };
        }
        &mut self.entries[index].record
    }

    /// Where the word is, or the empty entry where it belongs.
    #[inline]
    fn index_of(&self, word: usize) -> usize {
        let mask = self.entries.len() - 1;
        // Fibonacci hashing of the run; the upper half of the product is the well-mixed one.
        let run = ((word / RUN) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut index = (run as usize * RUN + word % RUN) & mask;
        loop {
            let entry = &self.entries[index];
            if entry.generation != self.generation || entry.word == word {
                return index;
            }
            index = (index + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![Entry::default(); self.entries.len() * 2];
        let smaller = std::mem::replace(&mut self.entries, larger);
        for entry in smaller {
            if entry.generation == self.generation {
                let index = self.index_of(entry.word);
                self.entries[index] = entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Access;
    use super::*;

    #[test]
    fn keeps_every_word_until_cleared() {
        let mut history = History::new();
        let floor = Access::floor(1);
        // Strides as of the rows of several arrays, enough to make it grow.
        let words = (0..3_000).map(|i| i % 50 * 128 + i / 50 * 65_536);
        for word in words.clone() {
            assert!(history.record(word).write(Access::new(1, 7), floor).is_ok());
        }
        for word in words.clone() {
            assert_eq!(history.record(word).read(Access::new(1, 8), floor).unwrap_err().access.thread(), 7);
        }
        assert_eq!(history.live, 3_000);
        history.clear();
        for word in words {
            assert!(history.record(word).read(Access::new(1, 8), floor).is_ok());
        }
    }
}
