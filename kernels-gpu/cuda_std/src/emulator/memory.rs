//! The global memory of a launch: the slices that a kernel may touch.
use std::marker::PhantomData;

use crate::memory::{Global, GlobalMut};

/// Slices lent to a launch, each as the pointer that the kernel takes. Nothing else is in the kernel's reach.
///
/// An index past the end of one slice that happens to hit another is not noticed: the address is all there is.
///
/// A state that is updated in place is one `read_write` slice; its other argument is `Global::new(state.as_ptr())`.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    regions: Vec<Region>,
    /// The slices stay borrowed as long as a launch can reach them.
    lent: PhantomData<&'a mut [()]>,
}

/// One slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub start: usize,
    pub bytes: usize,
    pub writable: bool,
}

impl Region {
    /// Whether an access of `bytes` bytes lies inside.
    #[inline]
    pub fn contains(&self, address: usize, bytes: usize) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.bytes && self.bytes - offset >= bytes
    }
}

impl<'a> Memory<'a> {
    /// No memory at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lends `slice` for reading. `T` has no padding.
    pub fn read_only<T: Copy + Sync>(&mut self, slice: &'a [T]) -> Global<T> {
        self.regions.push(Region { start: slice.as_ptr().addr(), bytes: size_of_val(slice), writable: false });
        Global::new(slice.as_ptr())
    }

    /// Lends `slice` for writing and reading. `T` has no padding, and every pattern of bits is a value of it.
    pub fn read_write<T: Copy + Send + Sync>(&mut self, slice: &'a mut [T]) -> GlobalMut<T> {
        self.regions.push(Region { start: slice.as_ptr().addr(), bytes: size_of_val(slice), writable: true });
        GlobalMut::new(slice.as_mut_ptr())
    }

    /// What was lent.
    pub(super) fn regions(&self) -> &[Region] {
        &self.regions
    }
}
