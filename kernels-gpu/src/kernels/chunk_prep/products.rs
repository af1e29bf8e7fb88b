//! The products of prep: k.k and q.k of a chunk's tokens, once for all value heads.
use super::{PARTS, Part, place_of};
use crate::kernels::chunk::{CHUNK, TRIANGLE, key_index, triangle_index, view};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::fma;
use cuda_std::memory::Quad;
use cuda_std::warp::warp_shuffle_xor;

impl Part<'_> {
    /// A row of a block of k.k or q.k.
    ///
    /// # Safety
    /// Keys and queries are complete; all lanes of the warp are here; nobody reads the products before a barrier.
    #[inline(always)]
    pub unsafe fn products(&self) {
        let (token_quad, earlier_quad) = place_of(self.thread / PARTS);
        let part = self.thread % PARTS;
        // What is left to this lane in the end: a row of k.k or of q.k.
        let (of, token) = (part / 4, token_quad * 4 + part % 4);
        // SAFETY: a field, which is two tiles of one layout.
        let rows = unsafe { (&raw mut (*self.keys).rows).cast::<Tile<{ 2 * CHUNK * HEAD_DIM }>>() };
        let index = |of, token| of * CHUNK * HEAD_DIM + key_index(token, part);
        // SAFETY: bounds: of two tiles, token < 32, part < 8.
        let [own, other]: [TokenRows; 2] = [of, 1 - of]
            .map(|of| [0, 1, 2, 3].map(|other_token| unsafe { view(rows, index(of, token ^ other_token)) }));
        // SAFETY: bounds: four keys from one in 0, 4 .. 28 on.
        let earlier: *mut Tile<EARLIER_VIEW> = unsafe { view(rows, index(0, 4 * earlier_quad)) };
        let (mut own_sums, mut other_sums) = ([[0.0; 4]; 4], [[0.0; 4]; 4]);
        for turn in 0..ROW_TURNS {
            // SAFETY: bounds: by the view. Barrier: "keys complete".
            let k = [0, 1, 2, 3].map(|i| unsafe { Tile::quad(earlier, i * HEAD_DIM + turn * 4 * PARTS) });
            // SAFETY: keys and queries are complete.
            unsafe {
                multiply(&mut own_sums, &own, turn, &k);
                multiply(&mut other_sums, &other, turn, &k);
            }
        }
        let mut gathered = [0.0; 4];
        for i in 0..4 {
            let mut halves = [0.0; 4];
            for other_token in 0..4 {
                let (own, other) = (own_sums[other_token][i], other_sums[other_token][i]);
                // SAFETY: all lanes are here. Bit 2 of the lane is the matrix, bits 0 and 1 the token.
                halves[other_token] = own + unsafe { warp_shuffle_xor(other, 4) };
            }
            // SAFETY: as above.
            unsafe {
                let own = halves[0] + warp_shuffle_xor(halves[2], 2);
                let other = halves[1] + warp_shuffle_xor(halves[3], 2);
                gathered[i] = own + warp_shuffle_xor(other, 1);
            }
        }
        // SAFETY: bounds: of two tiles, earlier_quad <= token / 4. Owner: this lane alone has (matrix, token, earlier
        // quad). Barrier: by the caller.
        unsafe {
            let tile = (&raw mut (*self.keys).products).cast::<Tile<TRIANGLE>>().wrapping_add(of);
            let row: *mut Tile<4> = view(tile, triangle_index(token, earlier_quad));
            Tile::put_quad(row, 0, gathered);
        }
    }
}

/// A lane takes its part of the rows in so many turns, four rows of every 32 each.
const ROW_TURNS: usize = HEAD_DIM / 4 / PARTS;
/// What a lane reads of a token's keys, and of four tokens' keys.
const ROW_VIEW: usize = (ROW_TURNS - 1) * 4 * PARTS + 4;
const EARLIER_VIEW: usize = 3 * HEAD_DIM + ROW_VIEW;
/// A lane's rows of the own token and of the three others of its group.
type TokenRows = [*mut Tile<ROW_VIEW>; 4];

/// Adds to the sums [own token, then the three others of its group][earlier token] what a turn's four rows give.
///
/// # Safety
/// The keys or queries are complete.
#[inline(always)]
unsafe fn multiply(sums: &mut [Quad; 4], rows: &TokenRows, turn: usize, k: &[Quad; 4]) {
    for other_token in 0..4 {
        // SAFETY: bounds: by the view. Barrier: by the caller.
        let x = unsafe { Tile::quad(rows[other_token], turn * 4 * PARTS) };
        for i in 0..4 {
            for row in 0..4 {
                sums[other_token][i] = fma(x[row], k[i][row], sums[other_token][i]);
            }
        }
    }
}
