//! Global memory as a kernel sees it: a bare pointer on the GPU, a pointer whose every access is checked in the emulator.
//!
//! A kernel's arguments are scalars and these pointers alone, since code generators have erred on aggregates
//! (alignment, by-value structs). Indices are `usize`: offsets that involve tokens pass 32 bits.
use crate::imp;

/// Four consecutive values, moved by one 16-byte access.
pub type Quad = [f32; 4];

/// Read-only global memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Global<T>(*const T);

/// Global memory that the kernel writes, and may read.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct GlobalMut<T>(*mut T);

// SAFETY: the pointer itself is a number; each access states its own contract.
unsafe impl<T> Send for Global<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Global<T> {}
// SAFETY: as above.
unsafe impl<T> Send for GlobalMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for GlobalMut<T> {}

impl<T: Copy> Global<T> {
    /// Names the memory at `pointer`; nothing is read.
    pub const fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// The address, for a launch or a copy.
    #[inline(always)]
    pub const fn as_ptr(self) -> *const T {
        self.0
    }

    /// The same memory as elements of another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> Global<U> {
        Global(self.0.cast())
    }

    /// The memory that starts `elements` further on.
    #[inline(always)]
    pub fn offset(self, elements: usize) -> Self {
        Self(self.0.wrapping_add(elements))
    }

    /// The element at `index`. PTX `ld.global`.
    ///
    /// # Safety
    /// The element lies inside the memory, and no thread writes it during the launch.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn at(self, index: usize) -> T {
        // SAFETY: the caller's contract.
        unsafe { imp::global_read(self.0.wrapping_add(index)) }
    }
}

impl Global<u32> {
    /// The word at `index` as it is now, though the host or another kernel may write it: for flags. PTX
    /// `ld.volatile.global`.
    ///
    /// # Safety
    /// The word lies inside the memory, and no thread of the launch writes it.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn look(self, index: usize) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { imp::global_read_volatile(self.0.wrapping_add(index)) }
    }
}

impl Global<f32> {
    /// The four values from `index` on. PTX `ld.global.v4.f32`.
    ///
    /// # Safety
    /// They lie inside the memory at a 16-byte aligned address, and no thread writes them during the launch.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn quad(self, index: usize) -> Quad {
        // SAFETY: the caller's contract.
        unsafe { imp::global_read_quad(self.0.wrapping_add(index)) }
    }
}

impl<T: Copy> GlobalMut<T> {
    /// Names the memory at `pointer`; nothing is read or written.
    pub const fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// The address, for a launch.
    #[inline(always)]
    pub const fn as_ptr(self) -> *mut T {
        self.0
    }

    /// The same memory as elements of another type.
    #[inline(always)]
    pub const fn cast<U>(self) -> GlobalMut<U> {
        GlobalMut(self.0.cast())
    }

    /// The memory that starts `elements` further on.
    #[inline(always)]
    pub fn offset(self, elements: usize) -> Self {
        Self(self.0.wrapping_add(elements))
    }

    /// Writes `value` at `index`. PTX `st.global`.
    ///
    /// # Safety
    /// The element lies inside the memory, and no other thread touches it before a barrier.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put(self, index: usize, value: T) {
        // SAFETY: the caller's contract.
        unsafe { imp::global_write(self.0.wrapping_add(index), value) }
    }
}

impl GlobalMut<f32> {
    /// Writes `value` at `index` if `condition`, without a branch. PTX `@p st.global.f32`.
    ///
    /// # Safety
    /// As [`GlobalMut::put`], where the condition holds.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_if(self, condition: bool, index: usize, value: f32) {
        // SAFETY: the caller's contract.
        unsafe { imp::global_write_if(condition, self.0.wrapping_add(index), value) }
    }

    /// Writes four values from `index` on. PTX `st.global.v4.f32`.
    ///
    /// # Safety
    /// They lie inside the memory at a 16-byte aligned address, and no other thread touches them before a barrier.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_quad(self, index: usize, value: Quad) {
        // SAFETY: the caller's contract.
        unsafe { imp::global_write_quad(self.0.wrapping_add(index), value) }
    }
}
