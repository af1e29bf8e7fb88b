//! Who has which slot of a pool of states.
#![forbid(unsafe_code)]
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// The slots of a pool whose size is fixed, so that addresses in captured graphs stay right. Clones share them; any thread may
/// take and give back.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Free>);

#[derive(Debug)]
struct Free {
    capacity: usize,
    /// The next one to be given is the last.
    free: Mutex<Vec<u32>>,
}

impl Slots {
    /// `capacity` slots, all free.
    ///
    /// # Errors
    /// [`Error::Shape`] for 2^31 or more: indices of 32 bits name them.
    pub fn new(capacity: usize) -> Result<Self> {
        let Ok(count) = i32::try_from(capacity) else {
            return Err(Error::shape("capacity", format!("at most {}", i32::MAX), capacity));
        };
        Ok(Self(Arc::new(Free { capacity, free: Mutex::new((0..count as u32).rev().collect()) })))
    }

    /// A free slot, the lowest at first. Its state is what its last owner left: see [`zero_states`](crate::cpu::zero_states).
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] where none is free.
    pub fn acquire(&self) -> Result<Slot> {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match free {
            Some(index) => Ok(Slot { index, of: Arc::clone(&self.0) }),
            None => Err(Error::PoolExhausted { capacity: self.0.capacity }),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// How many are taken.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.0.capacity - self.0.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A slot, until it is dropped: then it is free again. Nobody else has it, and it cannot be given back twice.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    index: u32,
    of: Arc<Free>,
}

impl Slot {
    /// What a row of a batch without a sequence has in a table of slots.
    pub const PADDING: i32 = -1;

    /// Its number, for a table of slots.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_given_once_and_comes_back() {
        let slots = Slots::new(3).unwrap();
        let mut held: Vec<Slot> = (0..3).map(|_| slots.acquire().unwrap()).collect();
        assert_eq!(held.iter().map(Slot::index).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(matches!(slots.acquire(), Err(Error::PoolExhausted { capacity: 3 })));
        drop(held.remove(1));
        assert_eq!(slots.in_use(), 2);
        assert_eq!(slots.acquire().unwrap().index(), 1);
        assert_eq!(slots.in_use(), 2);
        assert!(matches!(Slots::new(1 << 31), Err(Error::Shape { argument: "capacity", .. })));
    }

    #[test]
    fn threads_never_share_a_slot() {
        let slots = Slots::new(4).unwrap();
        let taken: Vec<std::sync::atomic::AtomicBool> = (0..4).map(|_| false.into()).collect();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(slot) = slots.acquire() else { continue };
                        let mark = &taken[slot.index() as usize];
                        assert!(!mark.swap(true, std::sync::atomic::Ordering::SeqCst));
                        mark.store(false, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(slots.in_use(), 0);
    }
}
