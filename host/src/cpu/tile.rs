//! Tokens in sequence, on a tile of the state that stays in the first-level cache.
//!
//! Taken literally, a token needs the state twice: d wants S^T k of all rows before any row can change. But the sweep that
//! writes a token's S can, while it has each row in registers, also sum S^T k for the *next* token's key. So a token is
//! one sweep: a load, a store, and four operations an element, which is what the definition has. That makes the
//! multipliers the limit, not the cache.
#![forbid(unsafe_code)]
use super::segment::{KeyInputs, ValueInputs};
use super::sums::{Update, correction, project, vectors_mut};
use crate::heads::HEAD_DIM;
use pulp::{Simd, WithSimd};

/// Columns of a tile: 16 KB, half of the smallest first-level cache in use.
pub(super) const COLUMNS: usize = 32;

/// All key rows of a few columns.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Tile(pub [[f32; COLUMNS]; HEAD_DIM]);

impl Tile {
    /// The state before the first token.
    pub const ZERO: Self = Self([[0.0; COLUMNS]; HEAD_DIM]);

    #[inline(always)]
    fn rows(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.0.iter_mut().map(|row| row.as_mut_slice())
    }
}

/// Carries `tile` through some tokens and leaves their outputs where their values were.
pub(super) struct Advance<'a> {
    pub tile: &'a mut Tile,
    pub keys: &'a [KeyInputs],
    pub values: &'a mut [ValueInputs],
    /// The head's column that is the tile's first.
    pub column: usize,
    pub scale: f32,
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Vectors side by side: sums enough to hide a multiply-add's latency, and few enough for the registers
        // (3 a vector, and 5): 32 of them with 16 and with 4 lanes, 16 with 8.
        match S::F32_LANES {
            16 => self.blocks::<S, 2>(simd),
            8 => self.blocks::<S, 2>(simd),
            _ => self.blocks::<S, 4>(simd),
        }
    }
}

impl Advance<'_> {
    #[inline(always)]
    fn blocks<S: Simd, const N: usize>(&mut self, simd: S) {
        for block in 0..COLUMNS / (N * S::F32_LANES) {
            self.block::<S, N>(simd, block * N);
        }
    }

    /// The `N` vectors of columns from `first` on.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(&mut self, simd: S, first: usize) {
        let scale = simd.splat_f32s(self.scale);
        let value_first = self.column / S::F32_LANES + first;
        let Some(key) = self.keys.first() else { return };
        let mut projected = project::<S, N>(simd, self.tile.rows(), first, &key.k);
        for (token, (key, values)) in self.keys.iter().zip(self.values.iter_mut()).enumerate() {
            let v = *vectors_mut::<S, N>(&mut values.value.0, value_first);
            let d = correction::<S, N>(simd, values, &v, &projected);
            let update = Update { decay: simd.splat_f32s(values.decay), d, key };
            // After the last token the sum is for nothing.
            let next = self.keys.get(token + 1).unwrap_or(key);
            let (o, [next_projected]) = update.sweep(simd, self.tile.rows(), first, [&next.k]);
            let value = vectors_mut::<S, N>(&mut values.value.0, value_first);
            for n in 0..N {
                value[n] = simd.mul_f32s(scale, o[n]);
            }
            projected = next_projected;
        }
    }
}
