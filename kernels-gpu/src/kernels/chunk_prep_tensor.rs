//! Chunked Gated DeltaNet on tensor cores, first kernel: [`super::chunk_prep`], whose results are written as pairs of 16-bit
//! floats, and the keys and queries with them, as [`super::chunk_scan_tensor`] copies them.
//!
//! # Threads: one block per (chunk, key head); as [`super::chunk_prep`], and
//! ```text
//!   split      half a warp a row of keys or queries, eight elements a lane
//! ```
use super::chunk::{Args, CHUNK, TOKEN_QUADS, chunk_kernel, key_index, triangle_index};
use super::chunk_prep::{self, Part, THREADS};
use super::chunk_tensor::{
    FACTORS, KEY_MATRIX, LARGEST_ENTRY, OUT_FACTORS, P_SCALE, Scratch, T_SCALE, TOKEN_MATRIX, TOTAL_DECAY, key_piece,
    token_piece,
};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::async_copy::wait;
use cuda_std::float::{exp, split_f16x2};
use cuda_std::memory::Quad;
use cuda_std::thread::{sync_threads, thread_idx_below};
use cuda_std::warp::{warp_max, warp_shuffle_xor};

pub use chunk_prep::grid;

/// What follows the value heads in shared memory.           written by          read by
#[repr(C, align(16))]
struct Scales {
    /// [token]: 2^m of keys, 2^n of queries; NaN where a row does not fit        split, store
    of: [Tile<CHUNK>; 2],
}

/// Shared memory of a block of `values` value heads.
pub const fn shared_bytes(values: usize) -> usize {
    chunk_prep::shared_bytes(values) + size_of::<Scales>()
}

chunk_kernel! {
    kernel "chunk_prep_tensor", capability 80, blocks 1;
    entry gdn_chunk_prep_tensor_r1 = run::<1>, threads THREADS, shared shared_bytes(1);
    entry gdn_chunk_prep_tensor_r2 = run::<2>, threads THREADS, shared shared_bytes(2);
    entry gdn_chunk_prep_tensor_r3 = run::<3>, threads THREADS, shared shared_bytes(3);
    entry gdn_chunk_prep_tensor_r4 = run::<4>, threads THREADS, shared shared_bytes(4);
}

/// The longest a key may be, squared; the strongest a token may write; and the least: a little below 0.
const LONGEST_KEY: f32 = 3.0;
const STRONGEST: f32 = 2.001;
const WEAKEST: f32 = -0.01;
/// What a gate may be above 0.
const LARGEST_GATE: f32 = 1e-4;

/// 2^e of a row's scale and its inverse, from the bits of its largest magnitude, which brings that between 1/2 and 1. NaN
/// where a row has no such scale, or one that leads too far: keys below 2^-20.
#[inline(always)]
fn row_scale(largest: u32, is_query: bool) -> (f32, f32) {
    let exponent = largest >> 23;
    let (least, most) = if is_query { (27, 227) } else { (107, 147) };
    if largest == 0 {
        (1.0, 1.0)
    } else if exponent < least || exponent > most {
        (f32::NAN, f32::NAN)
    } else {
        (f32::from_bits((exponent + 1) << 23), f32::from_bits((253 - exponent) << 23))
    }
}

/// Eight values as two pieces.
#[inline(always)]
fn split_piece(values: &[f32; 8]) -> (Quad, Quad) {
    let (mut high, mut low) = ([0.0; 4], [0.0; 4]);
    for pair in 0..4 {
        let (first, second) = split_f16x2(values[2 * pair], values[2 * pair + 1]);
        (high[pair], low[pair]) = (f32::from_bits(first), f32::from_bits(second));
    }
    (high, low)
}

#[inline(always)]
fn scales(part: &Part<'_>, values: usize) -> *mut Scales {
    part.head(values).cast()
}

/// Scales and splits the rows of keys and queries, into the scratch.
///
/// # Safety
/// Keys and queries are complete; all lanes of the warp are here; nobody reads the scales before a barrier.
#[inline(always)]
unsafe fn split<const VALUES: usize>(part: &Part<'_>) {
    let (half, piece) = (part.thread / 16, part.lane % 16);
    let keys = Scratch::of(part.args).keys(part.chunk, part.key_head);
    let mut turn = 0;
    while turn < (2 * CHUNK).div_ceil(THREADS / 16) {
        let row = half + turn * (THREADS / 16);
        // Lanes without a row take part in the exchange.
        let (of, token) = (row.min(2 * CHUNK - 1) / CHUNK, row % CHUNK);
        // SAFETY: of two tiles.
        let tile = unsafe { (&raw mut (*part.keys).rows).cast::<Tile<{ CHUNK * HEAD_DIM }>>().wrapping_add(of) };
        let mut values = [0.0; 8];
        for quad in 0..2 {
            // SAFETY: bounds: token < 32, quads below 32. Barrier: "keys complete".
            let quarter = unsafe { Tile::quad(tile, key_index(token, 2 * piece + quad)) };
            for i in 0..4 {
                values[4 * quad + i] = quarter[i];
            }
        }
        // By their bits, so that what is not a number is the largest.
        let mut largest = 0;
        for i in 0..8 {
            largest = largest.max(values[i].to_bits() & 0x7fff_ffff);
        }
        for bit in 0..4 {
            // SAFETY: all lanes are here.
            largest = largest.max(unsafe { warp_shuffle_xor(f32::from_bits(largest), 1 << bit) }.to_bits());
        }
        let (scale, inverse) = row_scale(largest, of == 1);
        for i in 0..8 {
            values[i] *= inverse;
        }
        let (high, low) = split_piece(&values);
        if row < 2 * CHUNK {
            let index = 2 * of * KEY_MATRIX + key_piece(token, piece);
            // SAFETY: bounds: token < 32, piece < 16. Owner: this thread alone has (row, piece), lane 0 or 16 the row.
            // Barrier: by the caller.
            unsafe {
                keys.put_quad(index, high);
                keys.put_quad(index + KEY_MATRIX, low);
                if piece == 0 {
                    let tile = (&raw mut (*scales(part, VALUES)).of).cast::<Tile<CHUNK>>().wrapping_add(of);
                    Tile::put(tile, token, scale);
                }
            }
        }
        turn += 1;
    }
}

/// Whether the state stays bounded by what this token does to it.
///
/// # Safety
/// Products and sums are complete.
#[inline(always)]
unsafe fn fits(part: &Part<'_>, value: usize) -> bool {
    let (token, head) = (part.lane, part.head(value));
    // SAFETY: bounds: a token a lane. Barrier: by the caller.
    unsafe {
        let k_k = Tile::at(&raw mut (*part.keys).products[0], triangle_index(token, token / 4) + token % 4);
        let beta = Tile::at(&raw mut (*head).beta, token);
        let mut gate = Tile::at(&raw mut (*head).high, token);
        if token > 0 {
            gate -= Tile::at(&raw mut (*head).high, token - 1);
        }
        // So that what is not a number does not fit.
        k_k <= LONGEST_KEY && beta <= STRONGEST && beta * k_k <= STRONGEST && beta >= WEAKEST && gate <= LARGEST_GATE
    }
}

/// A row of T or of P, its token's factors, and the mark, into the scratch.
///
/// # Safety
/// A and Q are complete; all lanes of the warp are here.
#[inline(always)]
unsafe fn store<const VALUES: usize>(part: &Part<'_>, value: usize, is_p: bool) {
    let (token, head, value_head) = (part.lane, part.head(value), part.value_head(value));
    let scratch = Scratch::of(part.args);
    let out = scratch.head(part.chunk, value_head);
    // SAFETY: by the caller.
    let x = unsafe { part.solved_row(value, is_p) };
    // SAFETY: bounds: a token a lane, of two tiles. Barrier: "products complete".
    let (row_scale, decay) = unsafe {
        let tile = (&raw mut (*scales(part, VALUES)).of).cast::<Tile<CHUNK>>().wrapping_add(usize::from(is_p));
        (Tile::at(tile, token), exp(Tile::at(&raw mut (*head).high, token)))
    };
    // A power of two, whose inverse has the opposite exponent.
    let inverse = f32::from_bits((254 << 23) - (row_scale.to_bits() & (0xff << 23)));
    // SAFETY: sums are complete.
    let row = unsafe { if is_p { P_SCALE * inverse } else { part.decay_to_end(value) * row_scale * T_SCALE } };
    // SAFETY: products and sums are complete.
    let mut fits = unsafe { fits(part, value) } && row_scale > 0.0;
    let matrix = if is_p { 2 * TOKEN_MATRIX } else { 0 };
    let mut sum = 0.0;
    for piece in 0..TOKEN_QUADS / 2 {
        let mut values = [0.0; 8];
        for quad in 0..2 {
            // SAFETY: bounds: eight quads. Barrier: "products complete".
            let beta = unsafe { Tile::quad(&raw mut (*head).beta, 8 * piece + 4 * quad) };
            for i in 0..4 {
                let entry = x[2 * piece + quad][i] * beta[i] * row;
                fits = fits && entry.abs() <= LARGEST_ENTRY;
                sum += entry.abs();
                values[4 * quad + i] = entry;
            }
        }
        let (high, low) = split_piece(&values);
        let index = matrix + token_piece(if piece < 2 { token } else { token.max(CHUNK / 2) }, piece);
        // The first half of the tokens has nothing of the second one.
        if piece < 2 || token >= CHUNK / 2 {
            // SAFETY: bounds: token < 32, piece < 4. Owner: this lane alone has the matrix's row.
            unsafe {
                out.put_quad(index, high);
                out.put_quad(index + TOKEN_MATRIX, low);
            }
        }
    }
    for bit in 0..5 {
        // SAFETY: all lanes are here.
        sum += unsafe { warp_shuffle_xor(sum, 1 << bit) };
    }
    // SAFETY: bounds: a token a lane. Owner: this lane alone has (value head, token), the last one the total decay, the
    // first one the mark of its warp's matrix. All lanes are here.
    unsafe {
        let factors = FACTORS + token / 2 * 4 + token % 2;
        if is_p {
            out.put(factors + 2, P_SCALE * decay);
            out.put(OUT_FACTORS + token, part.args.scale * (row_scale * (1.0 / P_SCALE)));
        } else {
            out.put(factors, decay * row_scale);
            if token == CHUNK - 1 {
                // The whole quad, since the scan copies quads.
                out.put_quad(TOTAL_DECAY, [decay, sum * (1.0 / T_SCALE), 0.0, 0.0]);
            }
        }
        let marked = warp_max(u32::from(!fits));
        if token == 0 {
            scratch.marks(part.chunk, value_head).put(usize::from(is_p), marked as f32);
        }
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `shared_bytes(VALUES)` of shared memory and
/// `chunk_tensor::scratch_len` floats of scratch; every tensor holds what its shape and strides describe; q and k have
/// 16-byte aligned rows.
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let part = Part::of(&args, thread_idx_below::<THREADS>());
    // SAFETY: nobody has read anything yet. A warp has a value head or none.
    unsafe {
        part.stage_keys();
        if part.warp < VALUES {
            part.sum_gates(part.warp);
        }
    }
    wait::<0>();
    // SAFETY: all threads are here. Keys complete, for products and split.
    unsafe { sync_threads() };
    // SAFETY: complete by the barrier; all lanes are here.
    unsafe {
        part.products();
        split::<VALUES>(&part);
    }
    // SAFETY: all threads are here. Products complete, for weigh; scales and sums of gates too, also for store.
    unsafe { sync_threads() };
    // SAFETY: complete by the barrier.
    unsafe { part.weigh::<VALUES>() };
    // SAFETY: all threads are here. A and Q complete, for store.
    unsafe { sync_threads() };
    if part.warp < 2 * VALUES {
        // SAFETY: complete by the barrier. A warp has one matrix of one value head.
        unsafe { store::<VALUES>(&part, part.warp / 2, part.warp % 2 == 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_scaled_to_about_1_or_does_not_fit() {
        for value in [1e-20f32, 2e-6, 0.09, 0.999, 1.0, 3.0, 1e5] {
            let (scale, inverse) = row_scale(value.to_bits(), true);
            assert!((0.5..1.0).contains(&(value * inverse)) && scale * inverse == 1.0, "{value}");
        }
        assert_eq!(row_scale(0, false), (1.0, 1.0));
        for value in [1e-7f32, 1e7, f32::INFINITY, f32::NAN] {
            assert!(row_scale(value.to_bits(), false).0.is_nan());
        }
    }
}
