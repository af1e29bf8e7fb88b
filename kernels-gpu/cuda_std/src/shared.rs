//! Shared memory of a block, as typed tiles. It starts undefined on the GPU, and as NaN in the emulator.
use crate::imp;
use crate::memory::Quad;

/// `N` floats in shared memory. Only ever a field of the struct that a kernel lays over its dynamic shared memory.
///
/// It hands out values, never references: other threads write it. Its accessors check the index against `N`, which
/// costs nothing where the compiler can see the bound.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Tile<const N: usize>([f32; N]);

/// A pointer to a [`Tile`], as the accessors take it.
pub type TilePtr<const N: usize> = *mut Tile<N>;

/// The block's dynamic shared memory, laid out as `T`. PTX: the module's external `.shared` array, 16-byte aligned.
/// In the emulator, `T` larger than the launch's shared bytes is a fault.
#[inline(always)]
#[track_caller]
pub fn dynamic_shared_mem<T>() -> *mut T {
    imp::dynamic_shared_mem(size_of::<T>()).cast()
}

impl<const N: usize> Tile<N> {
    /// The address of element `index`, checked.
    #[inline(always)]
    #[track_caller]
    pub fn address(tile: *mut Self, index: usize, elements: usize) -> *mut f32 {
        imp::require(index + elements <= N);
        tile.cast::<f32>().wrapping_add(index)
    }

    /// The value at `index`. PTX `ld.shared.f32`.
    ///
    /// # Safety
    /// `tile` is a field of the block's shared memory; a barrier stands between the last write of the element and this.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn at(tile: *mut Self, index: usize) -> f32 {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_read(Self::address(tile, index, 1)) }
    }

    /// Writes `value` at `index`. PTX `st.shared.f32`.
    ///
    /// # Safety
    /// As [`Tile::at`], and no other thread touches the element before the next barrier.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put(tile: *mut Self, index: usize, value: f32) {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_write(Self::address(tile, index, 1), value) }
    }

    /// Writes `value` at `index` if `condition`, without a branch. PTX `@p st.shared.f32`.
    ///
    /// # Safety
    /// As [`Tile::put`], where the condition holds.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_if(tile: *mut Self, condition: bool, index: usize, value: f32) {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_write_if(condition, Self::address(tile, index, 1), value) }
    }

    /// The two values from `index` on, `index % 2 == 0`. PTX `ld.shared.v2.f32`.
    ///
    /// # Safety
    /// As [`Tile::at`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn pair(tile: *mut Self, index: usize) -> [f32; 2] {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_read_pair(Self::address(tile, index, 2)) }
    }

    /// The four values from `index` on, `index % 4 == 0`. PTX `ld.shared.v4.f32`.
    ///
    /// # Safety
    /// As [`Tile::at`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn quad(tile: *mut Self, index: usize) -> Quad {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_read_quad(Self::address(tile, index, 4)) }
    }

    /// Writes two values from `index` on, `index % 2 == 0`. PTX `st.shared.v2.f32`.
    ///
    /// # Safety
    /// As [`Tile::put`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_pair(tile: *mut Self, index: usize, value: [f32; 2]) {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_write_pair(Self::address(tile, index, 2), value) }
    }

    /// Writes four values from `index` on, `index % 4 == 0`. PTX `st.shared.v4.f32`.
    ///
    /// # Safety
    /// As [`Tile::put`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put_quad(tile: *mut Self, index: usize, value: Quad) {
        // SAFETY: in bounds by `address`; order by the caller's contract.
        unsafe { imp::shared_write_quad(Self::address(tile, index, 4), value) }
    }
}
