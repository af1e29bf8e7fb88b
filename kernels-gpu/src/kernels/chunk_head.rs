//! What both kinds of chunk prep do for one value head: the sums of its gates, and its two triangular systems.
use super::chunk::{Args, BLOCK, CHUNK, TOKEN_QUADS, TRIANGLE, triangle_index, view};
use cuda_std::Tile;
use cuda_std::float::{exp, fma};
use cuda_std::memory::Quad;
use cuda_std::warp::warp_shuffle_up;

/// e^-104 rounds to 0: gates below are as good as this one, and unlike -inf they can be subtracted.
const LEAST_GATE: f32 = -104.0;

/// What belongs to one value head, in shared memory.      written by          read by
#[repr(C, align(16))]
pub struct Head {
    /// `triangle_index`: -A, Q                            weigh               solve
    pub minus_a: Tile<TRIANGLE>,
    /// Q, as in [`super::chunk`]
    pub q: Tile<TRIANGLE>,
    /// `[token]`: G in two parts, beta                      sum_gates           weigh, solve
    pub high: Tile<CHUNK>,
    /// What `high` is rounded by.
    pub low: Tile<CHUNK>,
    /// Write strengths.
    pub beta: Tile<CHUNK>,
}

/// `high + low`, where `low` is what `high` was rounded by.
type Double = (f32, f32);

#[inline(always)]
fn add(a: Double, b: Double) -> Double {
    let sum = a.0 + b.0;
    let of_b = sum - a.0;
    let rounded_off = (a.0 - (sum - of_b)) + (b.0 - of_b);
    let low = rounded_off + (a.1 + b.1);
    let high = sum + low;
    (high, low - (high - sum))
}

/// The gate and beta of `token` in the launch, both 0 where it does not exist.
///
/// # Safety
/// The token and the value head exist where `exists`.
#[inline(always)]
pub unsafe fn gates(args: &Args, value_head: usize, token: usize, exists: bool) -> (f32, f32) {
    if !exists {
        return (0.0, 0.0);
    }
    // SAFETY: bounds: by the caller. Read only.
    let (gate, beta) = unsafe {
        (
            args.g.at(value_head * args.g_head_stride + token * args.g_token_stride),
            args.beta.at(value_head * args.beta_head_stride + token * args.beta_token_stride),
        )
    };
    (if gate < LEAST_GATE { LEAST_GATE } else { gate }, beta)
}

/// G and beta of a value head, a token a lane, from `gates`. Gives the token's G.
///
/// # Safety
/// All lanes of the warp are here, and no other warp for this head; nobody reads its sums before a barrier.
#[inline(always)]
pub unsafe fn sum_gates(head: *mut Head, token: usize, (gate, beta): (f32, f32)) -> f32 {
    let mut sum = (gate, 0.0);
    let mut delta = 1;
    while delta < CHUNK {
        // SAFETY: all lanes are here.
        let below = unsafe { (warp_shuffle_up(sum.0, delta as u32), warp_shuffle_up(sum.1, delta as u32)) };
        if token >= delta {
            sum = add(below, sum);
        }
        delta *= 2;
    }
    // SAFETY: bounds: a token a lane. Owner: this lane alone has (value head, token). Barrier: by the caller.
    unsafe {
        Tile::put(&raw mut (*head).high, token, sum.0);
        Tile::put(&raw mut (*head).low, token, sum.1);
        Tile::put(&raw mut (*head).beta, token, beta);
    }
    sum.0
}

/// e^(G_last - G_t) of a token.
///
/// # Safety
/// Sums are complete; `token < 32`.
#[inline(always)]
pub unsafe fn decay_to_end(head: *mut Head, token: usize) -> f32 {
    // SAFETY: bounds: by the caller. Barrier: by the caller.
    unsafe {
        let [high, low] =
            [&raw mut (*head).high, &raw mut (*head).low].map(|tile| Tile::at(tile, CHUNK - 1) - Tile::at(tile, token));
        exp(high + low)
    }
}

/// The row of a token of W, or of Q W.
///
/// # Safety
/// A and Q are complete; `token < 32`.
#[inline(always)]
pub unsafe fn solved_row(head: *mut Head, token: usize, is_p: bool) -> [Quad; TOKEN_QUADS] {
    // SAFETY: by the caller; a row of blocks ends seven blocks after its first.
    let mut x = unsafe { right_side::<TOKEN_QUADS, ROW_OF_BLOCKS>(head, token, is_p) };
    // SAFETY: A is complete.
    unsafe {
        substitute_late(&mut x, head);
        substitute_early(&mut x, head);
    }
    x
}

/// The same of one of the first 16 tokens, up to there.
///
/// # Safety
/// As [`solved_row`]; `token < 16`.
#[inline(always)]
pub unsafe fn solved_early_row(head: *mut Head, token: usize, is_p: bool) -> [Quad; TOKEN_QUADS / 2] {
    // SAFETY: by the caller; a row of blocks ends three blocks after its first.
    let mut x = unsafe { right_side::<{ TOKEN_QUADS / 2 }, EARLY_ROW_OF_BLOCKS>(head, token, is_p) };
    // SAFETY: A is complete.
    unsafe { substitute_early(&mut x, head) };
    x
}

/// A row of the unit matrix, or of Q.
///
/// # Safety
/// As [`solved_row`]; `QUADS` blocks of the token's row of blocks are within `FLOATS` of its start.
#[inline(always)]
unsafe fn right_side<const QUADS: usize, const FLOATS: usize>(
    head: *mut Head,
    token: usize,
    is_p: bool,
) -> [Quad; QUADS] {
    // SAFETY: a field; bounds: by the caller.
    let q_row: *mut Tile<FLOATS> = unsafe { view(&raw mut (*head).q, triangle_index(token, 0)) };
    let mut x = [[0.0; 4]; QUADS];
    for quad in 0..QUADS {
        if is_p && quad <= token / 4 {
            // SAFETY: bounds: quad <= token / 4. Barrier: "A and Q complete".
            x[quad] = unsafe { Tile::quad(q_row, quad * BLOCK) };
        }
        for i in 0..4 {
            if !is_p && 4 * quad + i == token {
                x[quad][i] = 1.0;
            }
        }
    }
    x
}

/// What a lane reads of a row of a triangle.
const ROW_OF_BLOCKS: usize = (TOKEN_QUADS - 1) * BLOCK + 4;
const EARLY_ROW_OF_BLOCKS: usize = (TOKEN_QUADS / 2 - 1) * BLOCK + 4;

/// Solves x (I + A) = x for one row: from the last entry on, each is final when its turn comes and leaves those before it.
/// Written out, since x is in registers: each step has its own number of quads.
macro_rules! substitute {
    ($x:ident, $head:ident, $($token:literal)*) => { $(
        for quad in 0..($token as usize).div_ceil(4) {
            // SAFETY: bounds: quad <= token / 4. Barrier: by the caller.
            let minus_a = unsafe { Tile::quad(&raw mut (*$head).minus_a, triangle_index($token, quad)) };
            for i in 0..4 {
                if 4 * quad + i < $token {
                    $x[quad][i] = fma($x[$token / 4][$token % 4], minus_a[i], $x[quad][i]);
                }
            }
        }
    )* };
}

/// The last 16 entries.
///
/// # Safety
/// A is complete.
#[inline(always)]
unsafe fn substitute_late(x: &mut [Quad; TOKEN_QUADS], head: *mut Head) {
    substitute!(x, head, 31 30 29 28 27 26 25 24 23 22 21 20 19 18 17 16);
}

/// The first 16 entries.
///
/// # Safety
/// A is complete; x has them.
#[inline(always)]
unsafe fn substitute_early<const QUADS: usize>(x: &mut [Quad; QUADS], head: *mut Head) {
    const { assert!(QUADS >= TOKEN_QUADS / 2) }
    substitute!(x, head, 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1);
}

#[cfg(test)]
mod tests {
    use super::add;

    #[test]
    fn a_sum_keeps_what_single_precision_would_lose() {
        let mut sum = (0.0, 0.0);
        for _ in 0..1000 {
            sum = add(sum, (-0.1, 0.0));
        }
        assert!((f64::from(sum.0) + f64::from(sum.1) + 1000.0 * f64::from(0.1f32)).abs() < 1e-9);
    }
}
