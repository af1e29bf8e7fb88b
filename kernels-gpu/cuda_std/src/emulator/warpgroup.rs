//! Products of a warpgroup, as those of its warps, each octet of columns by itself: their second factor is in shared memory.
use std::panic::Location;

use super::block::current;
use super::shared::shared_read;
use super::tensor::mma_16x8x16;

/// Bytes of a row, and of the rows after which the swizzle repeats.
const ROW: usize = 128;

/// The word with the byte at `logical`, counted from the start of shared memory, of swizzled rows.
fn word(logical: usize, location: &'static Location<'static>) -> u32 {
    let bytes = (logical ^ (logical / ROW % 8 * 16)) & !3;
    // SAFETY: owner: the running thread's block, by `current`; the reference is not used after.
    let start = unsafe { (*current()).shared_start() };
    shared_read(start.wrapping_add(bytes).cast::<f32>(), location).to_bits()
}

/// `sums + a b`, where b starts at `b`: rows of 16 elements to be transposed, or 16 rows of 32 elements.
pub(crate) fn warpgroup_multiply(
    mut sums: [f32; 16],
    a: [u32; 4],
    b: *mut f32,
    transposed: bool,
    location: &'static Location<'static>,
) -> [f32; 16] {
    // SAFETY: owner: the running thread's block, by `current`; the reference is not used after.
    let (start, lane) = unsafe {
        let block = &mut *current();
        (b.addr().wrapping_sub(block.shared_start().addr()), block.running as usize % 32)
    };
    let (row, pair) = (lane / 4, lane % 4);
    for octet in 0..4 {
        let column = 8 * octet + row;
        let b = [0, 1].map(|half| {
            let depth = 2 * pair + 8 * half;
            if !transposed {
                return word(start + column * ROW + 2 * depth, location);
            }
            let element =
                |depth: usize| word(start + depth * ROW + 2 * column, location) >> (16 * (column % 2)) & 0xffff;
            element(depth) | element(depth + 1) << 16
        });
        let c = [0, 1, 2, 3].map(|i| sums[4 * octet + i]);
        sums[4 * octet..4 * octet + 4].copy_from_slice(&mma_16x8x16(c, a, b, location));
    }
    sums
}
