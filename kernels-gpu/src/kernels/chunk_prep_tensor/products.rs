//! The products of prep on tensor cores: k.k and q.k of a chunk's tokens, and of them A and Q of every value head.
use super::{KEYS, Part};
use crate::kernels::chunk::{CHUNK, triangle_index};
use crate::kernels::chunk_tensor::{KEY_MATRIX, for_each, key_piece};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::{SECOND_PART_SCALE, exp, fma};
use cuda_std::tensor::{MatrixRow, load_matrix_x4, mma_16x8x16};

/// Steps of sixteen rows.
const STEPS: usize = HEAD_DIM / 16;
/// Floats of sixteen tokens' keys.
const KEY_STEP: usize = 16 * HEAD_DIM / 2;

/// Sixteen tokens of keys or queries, with as many or the earlier sixteen keys: what a warp multiplies. The lower triangles
/// of k.k and q.k are six such tiles.
#[derive(Clone, Copy)]
pub struct TilePlace {
    is_query: bool,
    /// First token, and first earlier token.
    token: usize,
    earlier: usize,
}

/// How many warps have one.
pub const TILES: usize = 6;

impl TilePlace {
    #[inline(always)]
    pub fn of(warp: usize) -> Self {
        let third = warp % 3;
        Self { is_query: warp >= 3, token: if third == 0 { 0 } else { 16 }, earlier: if third == 2 { 16 } else { 0 } }
    }
}

/// The lane's part of a tile: [octet of earlier tokens][element of a sum].
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
        let of = if place.is_query { 2 * KEY_MATRIX } else { 0 };
        let first = of + place.token / 16 * KEY_STEP;
        let (mut large, mut small) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
        for step in 0..STEPS {
            // SAFETY: bounds: by `key_piece`, of four matrices. Barrier: by the caller; all lanes are here.
            unsafe {
                let x = MatrixRow::of(keys, first + key_piece(row + 8 * (matrix % 2), 2 * step + matrix / 2));
                let k = key_piece(row + 8 * (matrix / 2), 2 * step + matrix % 2);
                let k = MatrixRow::of(keys, place.earlier / 16 * KEY_STEP + k);
                let (x_high, x_low) = (load_matrix_x4(x), load_matrix_x4(x.offset(KEY_MATRIX)));
                let (k_high, k_low) = (load_matrix_x4(k), load_matrix_x4(k.offset(KEY_MATRIX)));
                for octet in 0..2 {
                    let pair = |k: [u32; 4]| [k[2 * octet], k[2 * octet + 1]];
                    small[octet] = mma_16x8x16(small[octet], x_low, pair(k_high));
                    small[octet] = mma_16x8x16(small[octet], x_high, pair(k_low));
                    // From zero, since tensor cores round toward zero, all sums of equal keys alike.
                    let sums = mma_16x8x16([0.0; 4], x_high, pair(k_high));
                    for i in 0..4 {
                        large[octet][i] += sums[i];
                    }
                }
            }
        }
        let mut products = [[0.0; 4]; 2];
        for octet in 0..2 {
            for i in 0..4 {
                products[octet][i] = fma(small[octet][i], 1.0 / SECOND_PART_SCALE, large[octet][i]);
            }
        }
        products
    }

    /// The tile's entries of A or Q of every value head, and of keys the squares of their lengths.
    ///
    /// # Safety
    /// Sums of gates and scales are complete; nobody reads A, Q and the squares before a barrier.
    #[inline(always)]
    pub unsafe fn weigh<const VALUES: usize>(&self, place: TilePlace, products: &Products) {
        for_each!(OCTET in [0 1] {
            for_each!(I in [0 1 2 3] {
                let token = place.token + self.lane / 4 + 8 * (I / 2);
                let earlier = place.earlier + 8 * OCTET + 2 * (self.lane % 4) + I % 2;
                // Blocks above the diagonal have no place in a triangle.
                if earlier / 4 <= token / 4 {
                    // SAFETY: by the caller.
                    unsafe { self.weigh_entry::<VALUES>(place.is_query, token, earlier, products[OCTET][I]) };
                }
            });
        });
    }

    /// An entry of A or Q, of every value head.
    ///
    /// # Safety
    /// As [`Part::weigh`]; `token` and `earlier` are below 32 and a place in the triangle, the lane's alone.
    #[inline(always)]
    unsafe fn weigh_entry<const VALUES: usize>(&self, is_query: bool, token: usize, earlier: usize, product: f32) {
        let of = usize::from(is_query);
        // SAFETY: bounds: by the caller. Barrier: by the caller.
        let product = unsafe {
            let scales = &raw mut (*self.shared).scales;
            product * (Tile::at(scales, of * CHUNK + token) * Tile::at(scales, earlier))
        };
        for value in 0..VALUES {
            let head = self.head(value);
            // SAFETY: as above.
            let (exponent, beta) = unsafe {
                let high = Tile::at(&raw mut (*head).high, token) - Tile::at(&raw mut (*head).high, earlier);
                let low = Tile::at(&raw mut (*head).low, token) - Tile::at(&raw mut (*head).low, earlier);
                (high + low, Tile::at(&raw mut (*head).beta, token))
            };
            // Later tokens are left out before the exponential: theirs would be infinite.
            let weighed = exp(if earlier <= token { exponent } else { 0.0 }) * product;
            let index = triangle_index(token, earlier / 4) + earlier % 4;
            // SAFETY: as above. Owner: by the caller.
            unsafe {
                if is_query {
                    Tile::put(&raw mut (*head).q, index, if earlier <= token { weighed } else { 0.0 });
                } else {
                    let entry = if earlier < token { -(beta * weighed) } else { 0.0 };
                    Tile::put(&raw mut (*head).minus_a, index, entry);
                }
            }
        }
        if !is_query && earlier == token {
            // SAFETY: as above.
            unsafe { Tile::put(&raw mut (*self.shared).squares, token, product) };
        }
    }
}

const _: () = assert!(KEYS == 4 * KEY_MATRIX && CHUNK == 32);
