//! The products of prep on tensor cores: k.k and q.k of a chunk's tokens, and of them A and Q of every value head.
use super::{KEYS, Part};
use crate::kernels::chunk::{CHUNK, again, triangle_index};
use crate::kernels::chunk_tensor::{KEY_MATRIX, KEY_PANEL, ROW, for_each, key_piece};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::exp;
use cuda_std::tensor::{MatrixRow, load_matrix_x4, mma_16x8x16};

/// Steps of sixteen rows.
const STEPS: usize = HEAD_DIM / 16;
/// Halves of them: those of a panel.
const TURNS: usize = 2;

/// Sixteen tokens with eight earlier ones: what a warp multiplies. The lower triangle is six such tiles.
#[derive(Clone, Copy)]
pub struct TilePlace {
    /// First token, and first earlier token.
    token: usize,
    earlier: usize,
}

/// How many warps have one.
pub const TILES: usize = 6;

impl TilePlace {
    #[inline(always)]
    pub fn of(warp: usize) -> Self {
        if warp < 2 { Self { token: 0, earlier: 8 * warp } } else { Self { token: 16, earlier: 8 * (warp - 2) } }
    }
}

/// The lane's part of a tile: of k.k, and of q.k.
pub type Products = [[f32; 4]; 2];

impl Part<'_> {
    /// The warp's tile of products of scaled keys and queries.
    ///
    /// # Safety
    /// Keys and queries are complete; all lanes of the warp are here.
    #[inline(always)]
    pub unsafe fn products(&self, place: TilePlace) -> Products {
        let (row, matrix) = (self.lane % 8, self.lane / 8);
        // SAFETY: a field.
        let keys = unsafe { &raw mut (*self.shared).keys };
        let tokens = place.token * ROW;
        let (mut large, mut small) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
        // Turn by turn: the assembler would load the factors of all of them first, and has no registers for so many.
        // SAFETY: all lanes are here.
        let turns = unsafe { again(TURNS as u32) };
        for turn in 0..turns as usize {
            for step in 0..STEPS / TURNS {
                // SAFETY: bounds: by `key_piece`, of four matrices. Barrier: by the caller; all lanes are here.
                unsafe {
                    let x = turn * KEY_PANEL + tokens + key_piece(row + 8 * (matrix % 2), 2 * step + matrix / 2);
                    let x = MatrixRow::of(keys, x);
                    // Both parts of the earlier keys by one load.
                    let k = turn * KEY_PANEL + place.earlier * ROW + key_piece(row, 2 * step + matrix % 2);
                    let k = load_matrix_x4(MatrixRow::of(keys, matrix / 2 * KEY_MATRIX + k));
                    let (k_high, k_low) = ([k[0], k[1]], [k[2], k[3]]);
                    for of in 0..2 {
                        let x = x.offset(2 * of * KEY_MATRIX);
                        let (x_high, x_low) = (load_matrix_x4(x), load_matrix_x4(x.offset(KEY_MATRIX)));
                        small[of] = mma_16x8x16(small[of], x_low, k_high);
                        small[of] = mma_16x8x16(small[of], x_high, k_low);
                        // From zero, since tensor cores round toward zero, all sums of equal keys alike.
                        let sums = mma_16x8x16([0.0; 4], x_high, k_high);
                        for i in 0..4 {
                            large[of][i] += sums[i];
                        }
                    }
                }
            }
        }
        let mut products = [[0.0; 4]; 2];
        for of in 0..2 {
            for i in 0..4 {
                products[of][i] = large[of][i] + small[of][i];
            }
        }
        products
    }

    /// The tile's entries of A and Q of every value head, and the squares of keys' lengths.
    ///
    /// # Safety
    /// Sums of gates and scales are complete; nobody reads A, Q and the squares before a barrier.
    #[inline(always)]
    pub unsafe fn weigh<const VALUES: usize>(&self, place: TilePlace, products: &Products) {
        for_each!(I in [0 1 2 3] {
            let token = place.token + self.lane / 4 + 8 * (I / 2);
            let earlier = place.earlier + 2 * (self.lane % 4) + I % 2;
            // Blocks above the diagonal have no place in a triangle.
            if earlier / 4 <= token / 4 {
                // SAFETY: by the caller.
                unsafe { self.weigh_entry::<VALUES>(token, earlier, [products[0][I], products[1][I]]) };
            }
        });
    }

    /// An entry of A and of Q, of every value head.
    ///
    /// # Safety
    /// As [`Part::weigh`]; `token` and `earlier` are below 32 and a place in the triangle, the lane's alone.
    #[inline(always)]
    unsafe fn weigh_entry<const VALUES: usize>(&self, token: usize, earlier: usize, products: [f32; 2]) {
        // SAFETY: bounds: by the caller. Barrier: by the caller.
        let [k_k, q_k] = unsafe {
            let scales = &raw mut (*self.shared).scales;
            let scale = Tile::at(scales, earlier);
            [products[0] * (Tile::at(scales, token) * scale), products[1] * (Tile::at(scales, CHUNK + token) * scale)]
        };
        let index = triangle_index(token, earlier / 4) + earlier % 4;
        for value in 0..VALUES {
            let head = self.head(value);
            // SAFETY: as above.
            let (exponent, beta) = unsafe {
                let high = Tile::at(&raw mut (*head).high, token) - Tile::at(&raw mut (*head).high, earlier);
                let low = Tile::at(&raw mut (*head).low, token) - Tile::at(&raw mut (*head).low, earlier);
                (high + low, Tile::at(&raw mut (*head).beta, token))
            };
            // Later tokens are left out before the exponential: theirs would be infinite.
            let decay = exp(if earlier <= token { exponent } else { 0.0 });
            let minus_a = if earlier < token { -(beta * (decay * k_k)) } else { 0.0 };
            // SAFETY: as above. Owner: by the caller.
            unsafe {
                Tile::put(&raw mut (*head).minus_a, index, minus_a);
                Tile::put(&raw mut (*head).q, index, if earlier <= token { decay * q_k } else { 0.0 });
            }
        }
        if earlier == token {
            // SAFETY: as above.
            unsafe { Tile::put(&raw mut (*self.shared).squares, token, k_k) };
        }
    }
}

const _: () = assert!(KEYS == 4 * KEY_MATRIX && CHUNK == 32);
