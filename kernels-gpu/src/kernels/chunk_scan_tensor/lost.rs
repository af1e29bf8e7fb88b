//! Columns that the scan gives up: what a chunk's y is, or the state at the end, is so far below what y was in the chunk before
//! that 16 bits have lost some of the state, as where milder gates than chunk prep marks forget a large state within a chunk.
//! The block stores no state then, and [`super::super::chunk_fallback`] takes its columns from the start.
use crate::kernels::chunk_parts::Part;
use crate::kernels::chunk_tensor::Scratch;
use cuda_std::Tile;
use cuda_std::warp::warp_max;

/// Notes for a thread, whose place is `index`, that one of its columns has lost bits, if it has.
///
/// # Safety
/// The place is the thread's own, and holds 0 before the first note.
#[inline(always)]
pub unsafe fn note<const N: usize>(tile: *mut Tile<N>, index: usize, has_lost: bool) {
    // SAFETY: bounds: a place a thread. Owner: by the caller. Barrier: before [`mark`].
    unsafe { Tile::put_if(tile, has_lost, index, 1.0) };
}

/// Whether any of the threads has noted something.
///
/// # Safety
/// All lanes of the warp are here; a barrier has passed since the last note.
#[inline(always)]
pub unsafe fn is_noted<const N: usize>(tile: *mut Tile<N>, lane: usize) -> bool {
    let mut noted = 0;
    for turn in 0..N / 128 {
        // SAFETY: bounds: four places a lane and turn. Barrier: by the caller.
        let quad = unsafe { Tile::quad(tile, 128 * turn + lane % 32 * 4) };
        for i in 0..4 {
            noted |= u32::from(quad[i] != 0.0);
        }
    }
    // SAFETY: all lanes are here.
    unsafe { warp_max(noted) != 0 }
}

/// Leaves the block's mark for the fallback, and gives it: whether any of the threads has noted something.
///
/// # Safety
/// As [`is_noted`]; the part has tokens; `half` is the block's half of the value head's columns.
#[inline(always)]
pub unsafe fn mark<const N: usize>(
    tile: *mut Tile<N>,
    thread: usize,
    scratch: Scratch,
    part: &Part,
    value_head: usize,
    half: usize,
) -> bool {
    // SAFETY: by the caller.
    let noted = unsafe { is_noted(tile, thread % 32) };
    if thread == 0 {
        // SAFETY: bounds: a part with tokens has its chunks in the scratch. Owner: this thread alone has the half's.
        unsafe { scratch.scan_marks(part.first_chunk, value_head).put(half, f32::from(u8::from(noted))) };
    }
    noted
}
